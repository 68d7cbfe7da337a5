"""Functions of rows of scores."""

from softcarry.cpu.threads import get_num_threads as get_num_threads
from softcarry.cpu.threads import set_num_threads as set_num_threads
from softcarry.rows._logprobs import Logprobs as Logprobs
from softcarry.rows._logprobs import logprobs as logprobs
from softcarry.rows._online import online_normalizer as online_normalizer
from softcarry.rows._reductions import log_softmax as log_softmax
from softcarry.rows._reductions import logsumexp as logsumexp
from softcarry.rows._reductions import softmax as softmax
from softcarry.rows._softmax_topk import softmax_topk as softmax_topk
from softcarry.rows._stream import RowStream as RowStream
from softcarry.rows._top import TopK as TopK
