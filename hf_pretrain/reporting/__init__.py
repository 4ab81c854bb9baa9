"""A run on one page: figures from `facts.json` and the stages' `log.jsonl`, in one HTML file without a script.

Read in this order:

* `page`: what stands on the page, in which order; works on whatever stages are done.
* `sections*`: the parts of the page; `sections_plan` holds a run against its plan.
* `run_data`: facts and logs as the series the figures need.
* `figures`: charts as SVG text: lines, stacked shares, heat map, dumbbells, intervals, bars.
* `fit_figures`: the charts of a scaling-law fit, as files of their own.
* `canvas`: scales, ticks and the few SVG elements that the figures are made of.
* `templates/`: the page's HTML and style; colours are CSS variables, so light and dark share one drawing.

Each figure is drawn twice, for a wide and for a narrow screen, and comes with its numbers as a table.

Example:

```python
from hf_pretrain.reporting.page import write_report

write_report("runs/tiny_cpu", "runs/tiny_cpu/report.html")
```
"""
