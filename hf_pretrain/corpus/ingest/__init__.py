"""
From files to documents: read, extract, name the language.

Every block is a datatrove `PipelineStep` and can stand next to datatrove's own blocks.

- `sample.py` builds the sample crawl (a WARC, four JSONL files, instructions, a benchmark) from five small packages
  and the standard library. Start here: it needs nothing but pip.
- `sources.py` reads `warc`, `jsonl`, `parquet`, `text` and `sample` sources. Each document's metadata holds `source`,
  `domain`, `file`, `row`, `license` and, where known, `url` and `language`.
- `extraction.py` turns HTML into text (`ResiliparseExtractor`, `TrafilaturaExtractor`).
- `language.py` writes `language` and `language_score`, and keeps the languages asked for.
- `language_codes.py` brings "fra", "fra_Latn" and "French" to "fr". `packages.py` fetches packages and reads their
  archives.

```python
from hf_pretrain.corpus.config_ingest import ExtractionConfig, LanguageConfig, SourceConfig
from hf_pretrain.corpus.ingest.extraction import build_extractor
from hf_pretrain.corpus.ingest.language import LanguageStep
from hf_pretrain.corpus.ingest.sample import build_sample
from hf_pretrain.corpus.ingest.sources import build_reader

build_sample("crawl")
documents = build_reader(SourceConfig(name="web"), sample_dir="crawl")()
documents = build_extractor(ExtractionConfig())(documents)
for document in LanguageStep(LanguageConfig(keep=["en", "fr"]))(documents):
    print(document.metadata["url"], document.metadata["language"], len(document.text))
```
"""
