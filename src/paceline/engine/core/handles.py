"""How the handle of a choice is made up, which a core sends back with its tokens."""

# A handle is the number of a front end, the number of a use of its rows, and a row. Late tokens of
# a request that has ended have the handle of an earlier use, which no row has any more.
ROW_BITS = USE_BITS = 24
FRONT_END_SHIFT = ROW_BITS + USE_BITS
MOST_FRONT_ENDS = 2 ** (63 - FRONT_END_SHIFT)
ROW = 2**ROW_BITS - 1
