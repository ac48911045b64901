"""Engines that run queries and writes call by call as Spark does, without Spark."""
