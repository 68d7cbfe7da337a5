"""keras.ops.nn.dot_product_attention as subjects, a backend each, and TensorFlow's compiled by XLA.

Observed with keras 3.15 on tensorflow-cpu 2.21 and on torch 2.13, without a GPU.

Layout
    q, k, v and the output are (b, t, h, d). Grouped heads are taken. No lse.
Backends
    A process has one. It is chosen when keras is first imported, so a second subject with another backend is
    refused until a process of its own. The JAX backend hands all over to jax.nn.dot_product_attention, which
    is a subject of its own.
TensorFlow
    Keras' own formula. Products of q and k are rounded to the dtype of the inputs before they become float32;
    P is rounded to it as well. Masked scores become −2.4e38: an empty row is the mean of all values of its
    head. Takes and returns NumPy arrays here, so no gradients are examined.
torch
    Goes on to torch's scaled_dot_product_attention. Booleans become 0 and −0.7 times the largest number of
    the dtype, which is added to the scores; the mean of values for an empty row follows.
Masks
    Booleans, True = attend, are its mask, floats its bias. is_causal is aligned top-left.
"""

import os
from functools import lru_cache, partial

from softcarry.auditing.subject import Subject
from softcarry.auditing.subjects import KNOWN

_OPTIONS = ("mask", "is_causal", "scale")


def on_tensorflow() -> Subject:
    """Return the function with the TensorFlow backend, executed eagerly.

    Returns
    -------
    Subject
        Takes mask, is_causal and scale, separately and together.
    """
    return _subject("keras-tensorflow", tensorflow_kernel, "numpy")


def on_tensorflow_xla() -> Subject:
    """Return the function with the TensorFlow backend, compiled by XLA for each shape.

    Returns
    -------
    Subject
        As of `on_tensorflow`.
    """
    return _subject("keras-tensorflow-xla", partial(tensorflow_kernel, xla=True), "numpy")


def on_torch() -> Subject:
    """Return the function with the torch backend.

    Returns
    -------
    Subject
        As of `on_tensorflow`, but that torch refuses a bias beside is_causal.
    """
    return _subject("keras-torch", torch_kernel, "torch")


def _subject(name, kernel, arrays):
    return Subject(
        kernel,
        name=name,
        arrays=arrays,
        layout="bthd",
        dtypes=KNOWN[name].dtypes,
        options=_OPTIONS,
        causal="top-left",
    )


def tensorflow_kernel(q, k, v, *, mask=None, is_causal=False, scale=None, xla=False):
    """Call ``keras.ops.nn.dot_product_attention`` on TensorFlow's tensors.

    Parameters
    ----------
    q, k, v : ndarray
        (b, tq, h, d), (b, tk, h or a divisor, d), (b, tk, h or a divisor, dv).
    mask : ndarray, optional
        Broadcastable to (b, h, tq, tk): boolean, True = attend, or floating, added to the scores.
    is_causal : bool
        Top-left.
    scale : float, optional
    xla : bool
        Whether to compile it.

    Returns
    -------
    ndarray
        (b, tq, h, dv) in the dtype of q.
    """
    # TensorFlow tells of GPUs that it does not find.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    function = _compiled_by_xla() if xla else _attention("tensorflow")
    return function(q, k, v, **_written(mask, is_causal, scale)).numpy()


def torch_kernel(q, k, v, *, mask=None, is_causal=False, scale=None):
    """Call ``keras.ops.nn.dot_product_attention`` on torch's tensors.

    Parameters
    ----------
    q, k, v, mask, is_causal, scale
        As of `tensorflow_kernel`, of torch.

    Returns
    -------
    torch.Tensor
        (b, tq, h, dv) in the dtype of q.
    """
    return _attention("torch")(q, k, v, **_written(mask, is_causal, scale))


def _written(mask, is_causal, scale):
    boolean = mask is not None and "bool" in str(mask.dtype)
    return {
        "mask": mask if boolean else None,
        "bias": None if boolean else mask,
        "is_causal": is_causal,
        "scale": scale,
    }


def _attention(backend):
    """Return the function with a backend, or say that this process has another."""
    os.environ.setdefault("KERAS_BACKEND", backend)
    import keras  # pyright: ignore[reportMissingImports]

    present = keras.backend.backend()
    if present != backend:
        msg = (
            f"a process has one backend of keras, and this one has {present!r}; "
            f"to audit {backend!r}, run it alone with KERAS_BACKEND={backend}"
        )
        raise RuntimeError(msg)
    return keras.ops.nn.dot_product_attention


@lru_cache(maxsize=1)
def _compiled_by_xla():
    attention = _attention("tensorflow")
    import tensorflow  # pyright: ignore[reportMissingImports]

    return tensorflow.function(attention, jit_compile=True, reduce_retracing=False)
