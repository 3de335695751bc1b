"""Tests of the module, on the demo model and the CPU."""

import gc
import json
import pathlib
import threading
import time
import unittest

import gristmill
import numpy

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = gristmill.Model(device="cpu", context=2048)

    def test_tokens_and_text(self):
        tokens = self.model.tokenize("Hello, world")
        self.assertEqual(self.model.detokenize(tokens), "Hello, world")
        self.assertEqual(self.model.context, 2048)

    def test_a_generation_is_its_pieces(self):
        stream = self.model.generate("Hello", max_tokens=12, temperature=0)
        pieces = list(stream)
        self.assertGreater(len(pieces), 1)
        self.assertIn(stream.finish_reason, ["token limit", "end of text"])
        again = self.model.generate("Hello", max_tokens=12, temperature=0).text()
        self.assertEqual("".join(pieces), again)
        short = self.model.generate("Hello", max_tokens=3, temperature=0)
        self.assertTrue(again.startswith(short.text()))
        self.assertEqual(short.finish_reason, "token limit")

    def test_a_seed_repeats_a_text(self):
        def text(seed):
            sampled = self.model.generate("Hello", max_tokens=20, temperature=1.5, seed=seed)
            return sampled.text()

        self.assertEqual(text(7), text(7))
        self.assertNotEqual({text(seed) for seed in range(5)}, {text(7)})

    def test_a_stop_string_ends_the_text(self):
        whole = self.model.generate("Hello", max_tokens=20, temperature=0).text()
        stop = whole[4:7]
        cut = self.model.generate("Hello", max_tokens=20, temperature=0, stop=stop).text()
        self.assertEqual(cut, whole[: whole.index(stop)])

    def test_chat_takes_a_text_or_messages(self):
        greedy = {"max_tokens": 20, "temperature": 0}
        one = self.model.chat("Hello", **greedy)
        text = one.text()
        self.assertTrue(text or one.reasoning)
        messages = [{"role": "user", "content": "Hello"}]
        self.assertEqual(text, self.model.chat(messages, **greedy).text())
        more = {"role": "user", "content": "What is the owl like?"}
        messages += [{"role": "assistant", "content": text}, more]
        self.assertNotEqual(text, self.model.chat(messages, **greedy).text())

    def test_logits_choose_the_greedy_token(self):
        prompt = self.model.tokenize("Hello", bos=True)
        logits = self.model.logits(prompt)
        self.assertEqual(logits.shape, (len(prompt), self.model.vocabulary))
        self.assertEqual(logits.dtype, numpy.float32)
        first = self.model.generate("Hello", max_tokens=1, temperature=0).text()
        self.assertEqual(self.model.detokenize([int(logits[-1].argmax())]), first)

    def test_embeddings_have_length_one(self):
        several = self.model.embed(["a text", "another"])
        self.assertEqual(several.shape, (2, self.model.width))
        numpy.testing.assert_allclose(numpy.linalg.norm(several, axis=1), 1, rtol=1e-5)
        numpy.testing.assert_allclose(self.model.embed("another"), several[1], atol=1e-5)
        self.assertGreater(float(numpy.abs(several[0] - several[1]).max()), 1e-3)

    def test_other_threads_run_during_a_computation(self):
        turns = []
        stop = threading.Event()

        def count():
            while not stop.is_set():
                turns.append(1)
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        before = len(turns)
        self.model.logits(self.model.tokenize("word " * 400))
        after = len(turns)
        stop.set()
        thread.join()
        self.assertGreater(after - before, 3)

    def test_a_dropped_stream_stops(self):
        stream = self.model.generate("Hello", temperature=0)
        next(stream)
        del stream
        gc.collect()
        begin = time.monotonic()
        self.model.generate("Hello", max_tokens=1, temperature=0).text()
        self.assertLess(time.monotonic() - begin, 5)
        closed = self.model.generate("Hello", temperature=0)
        closed.close()
        self.assertEqual(closed.text(), "")

    def test_errors_name_cause_and_way_out(self):
        with self.assertRaisesRegex(gristmill.GristmillError, "no file(.|\n)*hint: "):
            gristmill.Model("nowhere.gguf")
        with self.assertRaisesRegex(gristmill.GristmillError, "(.|\n)*hint: "):
            gristmill.Model(device="abacus")
        with self.assertRaisesRegex(ValueError, "precision sloppy\nhint: fast"):
            gristmill.Model(precision="sloppy")
        with self.assertRaisesRegex(ValueError, "no reranker(.|\n)*hint: "):
            self.model.rerank("query", ["document"])
        with self.assertRaisesRegex(ValueError, "no tokens"):
            self.model.logits([])
        with self.assertRaisesRegex(gristmill.GristmillError, "hint: "):
            self.model.logits([10**6])
        with self.assertRaisesRegex(TypeError, "no argument heat"):
            self.model.generate("Hello", heat=1)
        with self.assertRaisesRegex(ValueError, "hint: "):
            self.model.generate("Hello", temperature=float("nan"))
        with self.assertRaisesRegex(TypeError, "list of messages"):
            self.model.chat([{"content": "no role"}])


class Files(unittest.TestCase):
    def test_a_template_of_a_file_is_rendered(self):
        path = REPOSITORY / "assets" / "demo-glm-Q4_0.gguf"
        if not path.exists():
            self.skipTest("outside the repository")
        model = gristmill.Model(path, device="cpu", context=512)
        self.assertEqual(
            model.chat("Hello", max_tokens=8, temperature=0).text(),
            gristmill.Model(device="cpu", context=512)
            .chat("Hello", max_tokens=8, temperature=0)
            .text(),
        )

    def test_a_reranker_scores_documents_as_its_reference_does(self):
        folder = REPOSITORY / "llm" / "tests" / "data" / "pooling"
        if not folder.exists():
            self.skipTest("outside the repository")
        expected = json.loads((folder / "expected.json").read_text())
        path = folder / "qwen3-rank-q8_0.gguf"
        model = gristmill.Model(path, device="cpu", precision="exact", context=1024)
        scores = model.rerank(expected["query"], [row["document"] for row in expected["scores"]])
        numpy.testing.assert_allclose(
            scores, [row["score"] for row in expected["scores"]], atol=5e-3
        )
        with self.assertRaisesRegex(ValueError, "call rerank"):
            model.embed("text")
        for kind in ["mean", "cls", "last"]:
            model = gristmill.Model(path, device="cpu", precision="exact", pooling=kind)
            texts = [row["text"] for row in expected["embeddings"]]
            vectors = [row[kind] for row in expected["embeddings"]]
            numpy.testing.assert_allclose(model.embed(texts), vectors, atol=5e-3)


if __name__ == "__main__":
    unittest.main()
