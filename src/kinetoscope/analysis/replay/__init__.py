"""The recorded steps as a graph that replays: what the step takes once something in it is changed."""
