"""Attention on a CPU, with every option that models are served with."""

from softcarry._attention._functions import attention, attention_carry

__all__ = ["attention", "attention_carry"]
