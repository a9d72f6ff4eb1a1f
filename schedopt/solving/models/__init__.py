"""Models for CP-SAT: which order of operations, and which allocation, allow a period.

An `order_model.OrderModel` is made of `variables`, of `timing`, `resources` and `memory`
constraints, and of a strategy for the allocation: `given_allocation`, `contiguous_allocation` or
`any_allocation`. `pipeline` says what a micro-batch does on stages that are given, `slots` what it
does where the allocation is open, within its `domains`. `bisection` and `pattern_search` look for
the least period that a model allows.
"""
