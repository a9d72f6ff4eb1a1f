"""The systems that people train with, each a constructor of a plan."""
