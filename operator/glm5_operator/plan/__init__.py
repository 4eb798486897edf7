"""Plans: pure functions from (spec, facts) to desired objects.

Called by controllers and by `glm5 plan`. Does no I/O (recipes are packaged data) and reads no clock.
"""
