"""Fills 2 GiB in many small objects at import."""
# stage: 2
# outcome: crashed
# says: memory
# options: --memory 1


hoard = [b"%1024d" % i for i in range(19 * 10**5)]
