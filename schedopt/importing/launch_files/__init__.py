"""What people run now: launch files of engines as plans, laid out in the engine's own order."""
