"""Token shards: a tokenizer trained on the corpus, and the corpus as tokens that can be traced back.

Read `tokenization.py` first: `write_token_source(folder, documents, tokenizer, ...)` writes one source of one split in
datatrove's `.ds` format plus what datatrove lacks, a line of provenance for every document and a `source.json`.

* `tokenizer`: byte-level BPE trained on a sample balanced over sources; ChatML template with generation markers.
* `provenance`: the sidecar `00000.ds.docs.jsonl` with its byte index.
* `long_documents`: which documents are long enough for context extension.
* `splits`: train or validation, by a stable hash of the document's id.

Example:

```python
from datatrove.data import Document
from hf_pretrain.corpus.shards.tokenization import write_token_source
from hf_pretrain.corpus.shards.tokenizer import TokenizerConfig, save_tokenizer, train_tokenizer

documents = [Document(f"Text number {i}, about this and that.", str(i), metadata={"source": "web"}) for i in range(50)]
tokenizer = train_tokenizer([document.text for document in documents], TokenizerConfig(vocab_size=320))
save_tokenizer(tokenizer, "tokenizer")
print(write_token_source("tokens/train/web", "web", "train", documents, tokenizer)["num_tokens"])
```
"""
