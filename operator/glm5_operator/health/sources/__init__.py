"""What the sources say of cards, read strictly: the vendor's tools, MindCluster's maps, codes in logs. Pure."""
