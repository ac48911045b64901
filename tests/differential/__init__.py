"""The same random calls on two TubeMQ servers, and their replies compared field by field.

`generate` makes scripts, `play` plays one on one server, `compare` says what may differ, `bench` plays many on a pair,
`shrink` finds the smallest script that differs. `python -m tests.differential` runs thousands.
"""
