# SPDX-License-Identifier: Apache-2.0
"""Plays the same random calls on two TubeMQ servers and compares their replies field by field.

`generate` makes scripts, `play` plays one on one server, `compare` has the allowed differences, `bench` plays many on a
pair of servers, `findings` sorts what differs by kind. `python -m tests.differential` plays thousands.
"""
