"""What the sizes at which a kernel fails have in common."""

_BLOCKS = tuple(2**k for k in range(9, 0, -1))


def describe_sizes(name, failing, passing):
    """Find a rule that holds for every failing size and for no passing one, and put it into words.

    Parameters
    ----------
    name : str
        What the size is called, such as "n".
    failing, passing : iterable of int
        The sizes tried.

    Returns
    -------
    str
        The simplest rule that separates them: all, a threshold, multiples of a power of two, odd or even, one
        residue, or one of these from the first failing size on; else the failing sizes themselves.

    Examples
    --------
    >>> describe_sizes("n", [1, 33, 63, 127], [32, 64, 128])
    'every n that is not a multiple of 32'
    >>> describe_sizes("n", [33, 63, 127], [1, 7, 32, 96])
    'every n from 33 that is not a multiple of 32'
    >>> describe_sizes("d", [7, 9], [1, 8, 11])
    'd = 7, 9'
    """
    failing, passing = sorted(set(failing)), sorted(set(passing) - set(failing))
    if not failing:
        return f"no {name}"
    if not passing:
        return f"every {name} tried"
    if len(failing) > 1:
        if failing[0] > passing[-1]:
            return f"every {name} above {passing[-1]}"
        if failing[-1] < passing[0]:
            return f"every {name} below {passing[0]}"
        fitting = [(words, rule) for words, rule in _rules() if all(map(rule, failing))]
        for words, rule in fitting:
            if not any(map(rule, passing)):
                return f"every {name} {words}"
        # Two sizes have some residue in common by chance.
        for words, rule in fitting if len(failing) > 2 else ():
            if not any(rule(x) for x in passing if x >= failing[0]):
                return f"every {name} from {failing[0]} {words}"
    return f"{name} = {_listed(failing)}"


def _rules():
    # Larger blocks are the stronger statement: what is no multiple of 32 is none of 64 either.
    for block in _BLOCKS:
        words = "that is odd" if block == 2 else f"that is not a multiple of {block}"
        yield words, lambda x, block=block: x % block != 0
    for block in _BLOCKS:
        words = "that is even" if block == 2 else f"that is a multiple of {block}"
        yield words, lambda x, block=block: x % block == 0
    yield "that is not a power of two", lambda x: x & (x - 1) != 0
    # pytorch#147284: a reduction was wrong for odd widths that are not 31 modulo 32.
    yield "that is odd and not 31 modulo 32", lambda x: x % 2 == 1 and x % 32 != 31
    for block in _BLOCKS:
        for residue in (1, block - 1):
            yield (
                f"that is {residue} modulo {block}",
                lambda x, block=block, residue=residue: x % block == residue,
            )


def _listed(sizes, limit=8):
    text = ", ".join(str(size) for size in sizes[:limit])
    return text if len(sizes) <= limit else f"{text} and {len(sizes) - limit} more"
