"""Blocks that stay in the pool after their sequence has gone, found again by the tokens they hold."""

from collections.abc import Iterator, Sequence

from econ.kernels.pool import BlockPool


class PrefixStore:
    """Full blocks by their tokens and all tokens before them; the least recently used one goes first.

    A block is found through the block before it, so that equal tokens in different places are never
    taken for each other: keys and values depend on the whole prefix. The store is one holder of each block.

    >>> store = PrefixStore(pool := BlockPool(8), block_tokens=2)
    >>> store.insert([5, 6, 7, 8, 9], blocks=[pool.take(), pool.take(), pool.take()])
    >>> store.match([5, 6, 7, 8, 1]), store.match([7, 8])  # two full blocks; none: 7, 8 came third
    ([0, 1], [])
    """

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self.pool, self.block_tokens = pool, block_tokens
        self.block_of: dict[tuple, int] = {}  # (block before, its tokens) -> block; oldest use first

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest stored prefix of these tokens, in order."""
        blocks: list[int] = []
        keys = []
        for part in self._full_blocks(tokens):
            key = (blocks[-1] if blocks else None, part)
            if key not in self.block_of:
                break
            keys.append(key)
            blocks.append(self.block_of[key])
        for key in reversed(keys):  # the first block is used last: a block outlives those that follow it
            self.block_of[key] = self.block_of.pop(key)
        return blocks

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Keep the full blocks of a sequence, unless other blocks with the same tokens are kept already.

        So whoever holds a stored block also holds those before it, and `evict` never cuts a chain.
        """
        known = self.match(tokens)
        if known != list(blocks[:len(known)]):
            return
        before = known[-1] if known else None
        for part, block in list(zip(self._full_blocks(tokens), blocks, strict=False))[len(known):]:
            self.block_of[before, part] = self.pool.share(block)
            before = block
        self.match(tokens)  # new blocks in the order of use, too

    def evict(self) -> bool:
        """Give back the least recently used block that no sequence holds; False where there is none."""
        for key, block in self.block_of.items():
            if self.pool.refs[block] == 1:
                del self.block_of[key]
                self.pool.drop(block)
                return True
        return False

    def _full_blocks(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        size = self.block_tokens
        return (tuple(tokens[i:i + size]) for i in range(0, len(tokens) - size + 1, size))
