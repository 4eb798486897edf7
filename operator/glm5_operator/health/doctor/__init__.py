"""What `glm5 doctor` concludes from all that is known of a node. Pure."""
