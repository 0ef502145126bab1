"""Explorers for people with a kernel (Jupyter, Colab): sliders around the same functions the pages use.

ipywidgets is imported when an explorer is made. Readers of the static page have the live figures instead.
"""

from html import escape

from .cost import Deployment
from .errors import DoesNotFit
from .units import fmt

BATCHES = tuple(2**i for i in range(10))
CONTEXTS = tuple(2**i for i in range(7, 18))


def traffic(deployment: Deployment, batch: int, context: int) -> dict[str, str]:
    """What one decode step of `batch` sequences moves, and how long that takes at best, as printed text.

    Bytes are those of the whole replica; the time is the floor. A batch that does not fit says by how much.

    >>> traffic(Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4), 32, 8192)["cache"]
    '85.9 GB'
    """
    cache = deployment.model.kv_cache_bytes(tokens=context, batch=batch, dtype=deployment.kv)
    weights = deployment.model.streamed_weight_bytes(deployment.weights, tokens=batch)
    shown = {"weights": fmt(weights, "GB"), "cache": fmt(cache, "GB"), "cache / weights": fmt(cache / weights, "x", 2)}
    try:
        step = deployment.decode(batch=batch, context=context)
    except DoesNotFit as error:
        return {**shown, "one step": "does not fit", "why": str(error).split(": ", 1)[1]}
    return {**shown, "one step": fmt(step.time_s, "ms"), "tokens per second": fmt(batch / step.time_s, "tok/s")}


class TrafficExplorer:
    """Sliders for batch, context and GPUs over `traffic`: the map of chapter 7, with a kernel behind it.

    `view` is the widget to display; `text` holds what it shows now. Raises ValueError for an unknown model or GPU,
    or where none of 1, 2, 4, 8 GPUs divides the model's heads.
    """

    def __init__(self, model="llama-3.3-70b", accelerator="h100-sxm"):
        import ipywidgets

        first = Deployment(model, accelerator)
        self.model, self.accelerator = first.model, first.accelerator
        slider = ipywidgets.SelectionSlider
        style = {"description_width": "7em"}
        gpus = [n for n in (1, 2, 4, 8) if not self.model.heads % n]
        contexts = [n for n in CONTEXTS if not self.model.max_context or n < self.model.max_context]
        self.batch = slider(options=BATCHES, value=1, description="batch", style=style)
        self.context = slider(options=contexts, value=contexts[min(4, len(contexts) - 1)], description="context",
                              style=style)
        self.gpus = slider(options=gpus, value=gpus[-1], description="GPUs", style=style)
        self.output = ipywidgets.HTML()
        for control in (self.batch, self.context, self.gpus):
            control.observe(self._update, names="value")
        self._update(None)
        self.view = ipywidgets.VBox([self.batch, self.context, self.gpus, self.output])

    def _update(self, _change) -> None:
        deployment = Deployment(self.model, self.accelerator, n_gpus=self.gpus.value)
        self.text = traffic(deployment, self.batch.value, self.context.value)
        rows = "".join(f"<tr><td>{escape(k)}</td><td><b>{escape(v)}</b></td></tr>" for k, v in self.text.items())
        self.output.value = f"<table>{rows}</table>"
