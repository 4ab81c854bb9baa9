"""Models: the Strata family, registered with transformers' Auto classes by importing this room.

Start with `strata/configuration_strata.py` (what can be set), then `strata/modeling_strata.py` (what it does) and
`strata/routing_strata.py` (how tokens find experts). `pipeline_stages.py` divides a checkpoint's tensors into stages.

```python
>>> import torch
>>> from transformers import AutoModelForCausalLM
>>> import hf_pretrain.models
>>> from hf_pretrain.models.strata.configuration_strata import StrataConfig

>>> model = AutoModelForCausalLM.from_config(StrataConfig.preset("tiny-moe", vocab_size=512))
>>> ids = torch.randint(0, 512, (2, 32))
>>> output = model.train()(input_ids=ids, labels=ids)
>>> output.loss.backward()
>>> sorted(model.router_losses)
['load_balance', 'router_z']
>>> model.router_statistics()["load"].shape
torch.Size([4, 8])

```
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import (
    StrataForCausalLM,
    StrataForSequenceClassification,
    StrataModel,
)


AutoConfig.register("strata", StrataConfig, exist_ok=True)
AutoModel.register(StrataConfig, StrataModel, exist_ok=True)
AutoModelForCausalLM.register(StrataConfig, StrataForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(StrataConfig, StrataForSequenceClassification, exist_ok=True)
