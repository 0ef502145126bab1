"""econ: where the cost of a generated token comes from, computed from published configs and datasheets.

>>> import econ
>>> econ.load_model("llama-3.3-70b").kv_cache_bytes(tokens=2048)
671088640
"""

from importlib import import_module

__version__ = "0.1.0"

# A public name is loaded when it is first used, so that `import econ` stays fast however much the package holds.
# No public name is also the name of its module: importing the module would hide it.
_PUBLIC = {
    "config": ("load_model", "models"),
    "errors": ("ConfigError", "DoesNotFit", "UnknownName"),
    "hardware": ("Accelerator", "Link", "accelerators", "load_accelerator"),
    "choose": ("compare",),
    "market": ("api_prices", "prices"),
    "cost": ("Cost", "Deployment"),
    "latency": ("Request",),
    "profiles": ("Profile", "load_profile"),
    "serving": ("Load",),
    "memory": ("Memory",),
    "model": ("Attention", "Layer", "Model", "Tensor"),
    "reports": ("Report", "explain"),
    "roofline": ("Step", "attainable_flop_per_s", "time_on"),
    "units": ("fmt",),
    "work": ("Work", "forward"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"econ has no {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(f"econ.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
