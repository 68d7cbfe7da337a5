"""Lengths of keys, for adapters of libraries that have none of their own."""


def check_lengths(lengths, batch, keys):
    """Refuse lengths that fit no call: what an adapter makes of them is not the library's fault.

    Parameters
    ----------
    lengths : array or None
        (b,) integers, if there are any.
    batch, keys : int
        b and tk.

    Raises
    ------
    ValueError
        For another shape, or a length beyond the keys.

    Examples
    --------
    >>> check_lengths(None, 2, 48)
    """
    if lengths is None:
        return
    if tuple(lengths.shape) != (batch,) or (lengths > keys).any():
        msg = f"expected {batch} lengths of at most {keys} keys; got {lengths.tolist()}"
        raise ValueError(msg)
