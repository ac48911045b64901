"""A broker: stores, claims, groups' positions, flow rules. `service` is where to begin."""
