"""What every room may use, from the standard library alone.

Read `errors.py` first: a mistake of the user is a `UserError` with one clear line, everywhere in the package, and the
command line turns it into exit code 2. The rest in one line each:

* `naming`: "Did you mean ...?" messages.
* `optional`: imports of optional packages, with the pip line in the error.
* `strict`: a YAML mapping to a dataclass, where an unknown key or a wrong type is an error with a suggestion.
* `atomic`: files and folders that are complete or absent.
* `fingerprint`, `manifest`: what makes a finished step valid, and the record that it is finished.
* `facts`: `facts.json`, the only place where card, report and README take numbers from.
* `progress`: rate and time left on a terminal, plain lines in a log.
* `memory`: the most a process has held.
* `cache`: where downloads are kept between runs.

Example:

```python
from hf_pretrain.utils.facts import Facts

Facts("runs/mine").record_stage("2_pretrain", "pretrain", {"loss": {"first": 8.3, "last": 4.1}})
```
"""
