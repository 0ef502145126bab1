"""econ: where the cost of a generated token comes from, computed from published configs and datasheets.

>>> import econ
>>> econ.load_model("llama-3.3-70b").kv_cache_bytes(tokens=2048)
671088640
"""

from .config import load_model, models
from .errors import ConfigError, DoesNotFit, UnknownName
from .hardware import Accelerator, Link, accelerators, load_accelerator
from .latency import Deployment, Request
from .memory import Memory
from .model import Attention, Layer, Model, Tensor
from .roofline import Step, attainable_flop_per_s, time_on
from .units import fmt
from .work import Work, forward

__version__ = "0.1.0"
__all__ = ["Accelerator", "Attention", "ConfigError", "Deployment", "DoesNotFit", "Layer", "Link", "Memory", "Model",
           "Request", "Step", "Tensor", "UnknownName", "Work", "accelerators", "attainable_flop_per_s", "fmt",
           "forward", "load_accelerator", "load_model", "models", "time_on"]
