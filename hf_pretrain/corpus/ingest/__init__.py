"""
From files to documents: read, extract, name the language.

Every block is a datatrove `PipelineStep` and can stand next to datatrove's own blocks.

- `sample.py` builds the sample crawl (a WARC, four JSONL files, instructions, a benchmark) from five small packages
  and the standard library. Start here: it needs nothing but pip.
- `sources.py` finds the reader of a source: `web_archives.py` (`warc`, `wet`), `wikipedia.py`, `arxiv.py`,
  `stackexchange.py`, `code.py`, `books.py`, `problems.py`, `tables.py` (`jsonl`, `parquet`, `dataset`), and `text`.
  What a kind may be told stands in `config_sources`. All derive from `reader.py`: bad rows and files, rows left out by
  rule, and the sum that must be right. Each document's metadata holds `source`, `domain`, `file`, `row`, `license`
  and, where known, `url` and `language`. The extra `sources` brings the parsers.
- What they stand on: `listing.py` (which files), `streams.py` (gzip, bzip2, xz that give what they hold before they
  fail), `archives.py` (tar and zip of strangers, in memory, with limits), `safe_xml.py`, `wikitext.py`, `latex.py`,
  `html_fragments.py`, `code_files.py`, `licenses.py`.
- `urls.py` drops pages by their address, offline and before extraction.
- `extraction.py` turns HTML into text (`ResiliparseExtractor`, `TrafilaturaExtractor` with a bound on CPU time).
- `language.py` writes `language` and `language_score`, keeps and routes; `language_detectors.py` has the models.
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
