"""Steps on contiguous stages with replicas: bound, programme, simulation, search."""
