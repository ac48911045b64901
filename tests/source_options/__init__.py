# SPDX-License-Identifier: Apache-2.0
"""What each option of the source does, seen from outside: a query goes through the data source's own doors, in Spark's
order, and the embedded server tells what it was asked. Where Spark itself has a part in it, Spark runs."""
