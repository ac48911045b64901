# SPDX-License-Identifier: Apache-2.0
"""A simulated world: the connector's real code, the embedded servers and a model of Spark in one OS thread, with
virtual time. One seed decides every order of events. CONTRIBUTING.md says how to write an invariant, an actor, a story.
"""
