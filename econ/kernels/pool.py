"""Blocks of equal size, who holds them, and how sequences share them: the bookkeeping of a paged cache.

Nothing here touches a tensor; `paged.PagedCache` adds the keys and values, and `allocation` runs the
same tables without any.
"""

from collections.abc import Hashable, Sequence

from econ.arrays import ceil_div

BLOCK_TOKENS = 16  # the size that common engines choose


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises ValueError unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} is not a count; use a whole number of at least {least}")


class BlockPool:
    """Interchangeable blocks, each one free or held by one or more holders.

    Raises ValueError for a size that is not a positive whole number, for a block taken from an empty
    pool, and for a block that is shared or dropped although nobody holds it (a double free).

    >>> pool = BlockPool(4)
    >>> block = pool.share(pool.take())
    >>> pool.drop(block), pool.n_free  # one holder is left
    (None, 3)
    """

    def __init__(self, n_blocks: int) -> None:
        check_count("n_blocks", n_blocks)
        self.refs = [0] * n_blocks  # holders of each block
        self._free = list(range(n_blocks - 1, -1, -1))

    @property
    def n_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free block, now with one holder."""
        if not self._free:
            raise ValueError(f"all {len(self.refs)} blocks are held; free a sequence or use a larger pool")
        block = self._free.pop()
        self.refs[block] = 1
        return block

    def share(self, block: int) -> int:
        """The same block with one more holder."""
        self._check_held(block)
        self.refs[block] += 1
        return block

    def drop(self, block: int) -> None:
        """One holder fewer; the block is free when the last one has gone."""
        self._check_held(block)
        self.refs[block] -= 1
        if not self.refs[block]:
            self._free.append(block)

    def _check_held(self, block: int) -> None:
        if not 0 <= block < len(self.refs):
            raise ValueError(f"block {block} is not in this pool; use 0 to {len(self.refs) - 1}")
        if not self.refs[block]:
            raise ValueError(f"block {block} is free already; a block is dropped once by each holder")


class BlockTables:
    """For each sequence the blocks that hold its tokens, in order, and how many tokens are stored.

    Token t of a sequence lies in block table[t // block_tokens], at place t % block_tokens. Sequences
    share blocks by reference count; whoever writes into a shared block gets a copy first.
    A sequence is named by anything hashable. Raises ValueError for sizes that are not positive whole
    numbers, for a sequence that is unknown (freed twice, for instance) and for one that exists already.

    >>> tables = BlockTables(n_blocks=4, block_tokens=16)
    >>> tables.reserve("a", 40), tables.tables["a"]  # three blocks for 40 tokens
    (True, [0, 1, 2])
    >>> tables.reserve("b", 20)  # needs two, one is left
    False
    """

    def __init__(self, n_blocks: int, block_tokens: int = BLOCK_TOKENS) -> None:
        check_count("block_tokens", block_tokens)
        self.pool, self.block_tokens = BlockPool(n_blocks), block_tokens
        self.tables: dict[Hashable, list[int]] = {}
        self.n_tokens: dict[Hashable, int] = {}  # stored, at most block_tokens * len(table)
        self.n_copies = 0  # blocks copied because a writer shared them

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence that the whole pool could hold."""
        return len(self.pool.refs) * self.block_tokens

    def reserve(self, seq: Hashable, n_tokens: int, spare_blocks: int = 0) -> bool:
        """Make room for `n_tokens` tokens of a sequence, old ones included, and leave some blocks free.

        False, and nothing changed, where the pool has too few.
        """
        table = self.tables.get(seq, [])
        missing = max(0, ceil_div(n_tokens, self.block_tokens) - len(table))
        shared = n_tokens > self.n_tokens.get(seq, 0) and self._shares_last(seq)
        if missing + shared + spare_blocks > self.pool.n_free:
            return False
        if shared:
            self._copy_last(seq)
        table.extend(self.pool.take() for _ in range(missing))
        self.tables[seq] = table
        self.n_tokens.setdefault(seq, 0)
        return True

    def advance(self, seq: Hashable, new_tokens: int) -> None:
        """Count tokens that were written into reserved places as stored."""
        self._check_known(seq)
        end = self.n_tokens[seq] + new_tokens
        if end > len(self.tables[seq]) * self.block_tokens:
            raise ValueError(f"sequence {seq!r} has {len(self.tables[seq])} blocks of {self.block_tokens} "
                             f"tokens, too few for {end}; call reserve first")
        self.n_tokens[seq] = end

    def adopt(self, seq: Hashable, blocks: Sequence[int], n_tokens: int) -> None:
        """Begin a sequence on blocks that are filled already: one more holder each, nothing copied."""
        if seq in self.tables:
            raise ValueError(f"sequence {seq!r} exists already; free it or choose another name")
        self.tables[seq] = [self.pool.share(block) for block in blocks]
        self.n_tokens[seq] = n_tokens

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Begin a sequence with all that another has stored, in the same blocks."""
        self._check_known(parent)
        stored = self.n_tokens[parent]
        self.adopt(child, self.tables[parent][:ceil_div(stored, self.block_tokens)], stored)

    def free(self, seq: Hashable) -> None:
        """Forget a sequence; its blocks return to the pool unless others hold them."""
        self._check_known(seq)
        del self.n_tokens[seq]
        for block in self.tables.pop(seq):
            self.pool.drop(block)

    def _shares_last(self, seq: Hashable) -> bool:
        """Whether the next token would be written into a half-filled block that others hold too."""
        index, filled = divmod(self.n_tokens.get(seq, 0), self.block_tokens)
        return filled > 0 and self.pool.refs[self.tables[seq][index]] > 1

    def _copy_last(self, seq: Hashable) -> None:
        index = self.n_tokens[seq] // self.block_tokens
        shared, own = self.tables[seq][index], self.pool.take()
        self._copy(shared, own)
        self.pool.drop(shared)
        self.tables[seq][index] = own
        self.n_copies += 1

    def _copy(self, source: int, target: int) -> None:
        """Copy what a block holds; bare tables hold nothing."""

    def _check_known(self, seq: Hashable) -> None:
        if seq not in self.tables:
            raise ValueError(f"sequence {seq!r} is unknown; it was freed already or never reserved")
