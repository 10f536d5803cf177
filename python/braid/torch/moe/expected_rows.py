"""How much room a dispatch needs whose sizes have not come yet."""


class ExpectedRows:
    """How many rows a dispatch will bring, by the most that came of late for each token of this
    rank, which is forgotten by and by. Calls of about as many tokens are alike: what comes is of
    all ranks' tokens, and where this one has few it says nothing about the others'.
    """

    _SPARE = 16  # rows, and a part of them

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._per_token: dict[int, float] = {}  # by the bits of a number of tokens

    def room(self, tokens: int) -> int:
        """Rows; 0: nothing has come yet. At most as many as ranks send that have as many tokens."""
        per_token = self._per_token.get(tokens.bit_length())
        if per_token is None:
            return 0
        expected = int(per_token * tokens * (1 + 1 / self._SPARE))
        return min(expected, self._num_ranks * tokens) + self._SPARE

    def saw(self, tokens: int, rows: int) -> None:
        bits = tokens.bit_length()
        kept = self._per_token.get(bits, 0.0) * (1 - 1 / self._SPARE)
        self._per_token[bits] = max(kept, rows / max(tokens, 1))
