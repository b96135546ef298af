"""The clusters of one deployment: a folder for each, whose ``defs.yaml`` names its settings file."""
