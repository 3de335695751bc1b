//! GGUF, models, tokenizers, chat templates, sampling, sessions.
