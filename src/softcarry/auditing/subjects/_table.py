"""The table of known subjects: plain text, so that nothing is imported to list them."""

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class KnownSubject:
    """One line of the table of known subjects.

    Attributes
    ----------
    name : str
        What ``softcarry audit`` calls it.
    summary : str
        What it is.
    factory : str
        "module:function" of the adapter, which returns the Subject.
    dtypes : tuple of str
        The dtypes in which it is audited; nothing, where only loading it tells.
    requires : str
        The module it needs beyond softcarry's own dependencies, or nothing.
    install : str
        The command that installs that module.
    control : bool
        True for a kernel that is wrong on purpose.
    slow : bool
        True for one that takes minutes, because every shape is compiled or interpreted: it is audited when
        it is named.
    """

    name: str
    summary: str
    factory: str
    dtypes: tuple[str, ...]
    requires: str = ""
    install: str = ""
    control: bool = False
    slow: bool = False

    @property
    def available(self) -> bool:
        """Whether the module it requires is installed; nothing is imported to find out."""
        return not self.requires or find_spec(self.requires) is not None


_ALL = ("float64", "float32", "bfloat16", "float16")
_TORCH = {
    "dtypes": ("float32", "bfloat16", "float16"),
    "requires": "torch",
    "install": 'pip install "softcarry[torch]"',
}
_JAX = {
    "dtypes": ("float32", "bfloat16"),
    "requires": "jax",
    "install": 'pip install "softcarry[jax]"',
}

_SUBJECTS = 'pip install "softcarry[subjects]"'
# With its dependencies, ExecuTorch would bring another torch.
_EXECUTORCH = "pip install --no-deps executorch, and pip install ruamel.yaml tabulate pyyaml"
_HALVES = ("float32", "bfloat16", "float16")

TABLE = (
    KnownSubject(
        "softcarry",
        "softcarry's reference kernel: blocked attention made of Carry.of and merge",
        "softcarry.auditing.subjects.softcarry_reference:reference",
        _ALL,
    ),
    KnownSubject(
        "softcarry-attention",
        "softcarry.attention on NumPy arrays, with the lse of attention_carry",
        "softcarry.auditing.subjects.softcarry_attention:numpy_attention",
        _ALL,
    ),
    KnownSubject(
        "softcarry-attention-torch",
        "softcarry.attention on torch tensors, with the lse of attention_carry",
        "softcarry.auditing.subjects.softcarry_attention:torch_attention",
        **{**_TORCH, "dtypes": _ALL},
    ),
    KnownSubject(
        "softcarry-attention-prefill",
        "softcarry.attention_carry on its path of many queries: o / l and lse, before any 16-bit rounding",
        "softcarry.auditing.subjects.softcarry_attention:prefill",
        _ALL,
    ),
    KnownSubject(
        "torch-sdpa-flash",
        "torch's CPU flash attention operator, with its lse",
        "softcarry.auditing.subjects.torch_sdpa:flash",
        **_TORCH,
    ),
    KnownSubject(
        "torch-sdpa-math",
        "torch's scaled_dot_product_attention on its unfused MATH path",
        "softcarry.auditing.subjects.torch_sdpa:math",
        **_TORCH,
    ),
    KnownSubject(
        "torch-flex",
        "torch's flex_attention, called plainly: the whole score matrix",
        "softcarry.auditing.subjects.torch_flex:eager",
        **{**_TORCH, "dtypes": _ALL},
        slow=True,
    ),
    KnownSubject(
        "torch-flex-compiled",
        "torch's flex_attention through torch.compile: a C++ kernel, built for minutes the first time",
        "softcarry.auditing.subjects.torch_flex:compiled",
        **_TORCH,
        slow=True,
    ),
    KnownSubject(
        "torch-multihead",
        "torch.nn.MultiheadAttention with need_weights=False",
        "softcarry.auditing.subjects.torch_multihead:without_weights",
        **_TORCH,
    ),
    KnownSubject(
        "torch-multihead-weights",
        "torch.nn.MultiheadAttention with need_weights=True",
        "softcarry.auditing.subjects.torch_multihead:with_weights",
        **_TORCH,
    ),
    KnownSubject(
        "jax-dot-product",
        "jax.nn.dot_product_attention, with its lse",
        "softcarry.auditing.subjects.jax_attention:dot_product",
        **_JAX,
    ),
    KnownSubject(
        "pallas-mha",
        "jax's Pallas attention for GPUs, interpreted, with its lse",
        "softcarry.auditing.subjects.pallas_attention:multi_head",
        **_JAX,
        slow=True,
    ),
    KnownSubject(
        "onnxruntime-attention",
        "ONNX Runtime's Attention of the ONNX standard (opset 23 and later)",
        "softcarry.auditing.subjects.onnxruntime_attention:attention",
        ("float64", "float32", "float16"),
        requires="onnxruntime",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "onnxruntime-mha",
        "ONNX Runtime's com.microsoft MultiHeadAttention",
        "softcarry.auditing.subjects.onnxruntime_multi_head:multi_head",
        ("float32", "float16"),
        requires="onnxruntime",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "onnxruntime-gqa",
        "ONNX Runtime's com.microsoft GroupQueryAttention, as decoding and prompts call it",
        "softcarry.auditing.subjects.onnxruntime_grouped_query:grouped_query",
        ("float32", "float16"),
        requires="onnxruntime",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "openvino-sdpa",
        "OpenVINO's scaled_dot_product_attention on the CPU, in float32 inside",
        "softcarry.auditing.subjects.openvino_sdpa:sdpa",
        _HALVES,
        requires="openvino",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "mlx-sdpa",
        "MLX's fast.scaled_dot_product_attention on the CPU",
        "softcarry.auditing.subjects.mlx_sdpa:sdpa",
        _HALVES,
        requires="mlx",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "ggml-flash",
        "ggml's flash_attn_ext on the CPU, as in llama.cpp",
        "softcarry.auditing.subjects.ggml_flash:flash",
        _HALVES,
        requires="xllamacpp",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "tinygrad-sdpa",
        "tinygrad's Tensor.scaled_dot_product_attention on its CPU device",
        "softcarry.auditing.subjects.tinygrad_sdpa:sdpa",
        ("float32", "float16"),
        requires="tinygrad",
        install="pip install tinygrad, and clang from the system's packages",
        slow=True,
    ),
    KnownSubject(
        "executorch-sdpa",
        "ExecuTorch's custom_sdpa, which its language models call",
        "softcarry.auditing.subjects.executorch_sdpa:sdpa",
        _HALVES,
        requires="executorch",
        install=_EXECUTORCH,
    ),
    KnownSubject(
        "torch-softmax",
        "torch.softmax alone, between exact scores and an exact product",
        "softcarry.auditing.subjects.softmaxes:torch_softmax",
        _ALL,
        requires="torch",
        install='pip install "softcarry[torch]"',
    ),
    KnownSubject(
        "jax-softmax",
        "jax.nn.softmax alone",
        "softcarry.auditing.subjects.softmaxes:jax_softmax",
        _HALVES,
        requires="jax",
        install='pip install "softcarry[jax]"',
        slow=True,
    ),
    KnownSubject(
        "scipy-softmax",
        "scipy.special.softmax alone",
        "softcarry.auditing.subjects.softmaxes:scipy_softmax",
        ("float64", "float32"),
        requires="scipy",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "softcarry-softmax",
        "softcarry.softmax alone",
        "softcarry.auditing.subjects.softmaxes:softcarry_softmax",
        _ALL,
    ),
    KnownSubject(
        "tract-softmax",
        "tract's softmax alone",
        "softcarry.auditing.subjects.tract_softmax:softmax",
        ("float64", "float32", "float16"),
        requires="tract",
        install=_SUBJECTS,
    ),
    KnownSubject(
        "executorch-softmax",
        "the softmax kernel of ExecuTorch's runtime alone",
        "softcarry.auditing.subjects.executorch_softmax:softmax",
        _HALVES,
        requires="executorch",
        install=_EXECUTORCH,
    ),
    KnownSubject(
        "keras-tensorflow",
        "keras.ops.nn.dot_product_attention on TensorFlow",
        "softcarry.auditing.subjects.keras_attention:on_tensorflow",
        ("float32", "bfloat16", "float16"),
        "tensorflow",
        'pip install "softcarry[subjects]"',
    ),
    KnownSubject(
        "keras-tensorflow-xla",
        "keras.ops.nn.dot_product_attention on TensorFlow, compiled by XLA",
        "softcarry.auditing.subjects.keras_attention:on_tensorflow_xla",
        ("float32", "bfloat16", "float16"),
        "tensorflow",
        'pip install "softcarry[subjects]"',
        slow=True,
    ),
    KnownSubject(
        "keras-torch",
        "keras.ops.nn.dot_product_attention on torch",
        "softcarry.auditing.subjects.keras_attention:on_torch",
        ("float32", "bfloat16", "float16"),
        "keras",
        'pip install "softcarry[subjects]"',
        slow=True,
    ),
    KnownSubject(
        "triton-flash",
        "a flash attention kernel of softcarry's own in Triton, interpreted, with its lse",
        "softcarry.auditing.subjects.triton_attention:flash",
        ("float32", "bfloat16", "float16"),
        "triton",
        'pip install "softcarry[subjects]"',
        slow=True,
    ),
    KnownSubject(
        "flash-attn",
        "flash-attn's flash_attn_func, with its lse; needs a CUDA device",
        "softcarry.auditing.subjects.flash_attn:flash",
        ("bfloat16", "float16"),
        "flash_attn",
        "pip install flash-attn",
    ),
    KnownSubject(
        "flashinfer",
        "FlashInfer's single_prefill_with_kv_cache, with its lse; needs a CUDA device",
        "softcarry.auditing.subjects.flashinfer:single_prefill",
        ("bfloat16", "float16"),
        "flashinfer",
        "pip install flashinfer-python",
    ),
    KnownSubject(
        "xformers",
        "xFormers' memory_efficient_attention, with its lse; needs a CUDA device",
        "softcarry.auditing.subjects.xformers:memory_efficient",
        ("float32", "bfloat16", "float16"),
        "xformers",
        "pip install xformers",
    ),
    KnownSubject(
        "control-bfloat16-carry",
        "CONTROL, wrong on purpose: l and o kept in bfloat16, one key a block",
        "softcarry.auditing.subjects.controls:bfloat16_carry",
        ("float32",),
        control=True,
    ),
    KnownSubject(
        "control-numpy-softmax",
        "CONTROL: NumPy's softmax on the bfloat16 of ml_dtypes, whose sums stop at 256",
        "softcarry.auditing.subjects.softmaxes:numpy_softmax",
        ("bfloat16",),
        control=True,
    ),
)
