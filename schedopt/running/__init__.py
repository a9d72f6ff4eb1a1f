"""Running a plan: what each rank does, and three ways to do it."""
