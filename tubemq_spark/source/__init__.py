"""The Spark source: planning on the driver, exact reads on the executors."""
