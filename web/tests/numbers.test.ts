import assert from "node:assert/strict";
import { test } from "node:test";
import * as names from "../src/names.ts";
import * as numbers from "../src/numbers.ts";
import { format, parse } from "../src/links.ts";

test("quantities have three digits and their unit", () => {
  const plain = (text: string) => text.replaceAll("\u00a0", " ");
  assert.equal(plain(numbers.time(18_345)), "18.3 ms");
  assert.equal(plain(numbers.time(999.7)), "1.00 ms");
  assert.equal(plain(numbers.time(0)), "0 µs");
  assert.equal(plain(numbers.span(1200, 18_300)), "1.20–18.3 ms");
  assert.equal(plain(numbers.percent(0.0001)), "<0.1 %");
  assert.equal(plain(numbers.percent(1)), "100 %");
  assert.equal(numbers.count(1024, "launch"), "1,024 launches");
  assert.equal(numbers.count(2, "way"), "2 ways");
  assert.equal(numbers.count(2, "copy"), "2 copies");
});

test("names lose their middle, and what would be obeyed instead of shown", () => {
  assert.equal(names.shorten("triton_poi_fused_add_0", 9), "trit…dd_0");
  assert.equal(names.shorten("a\nb", 9), "a b");
  assert.equal(names.printable("\u202egnp.exe\u001b[31m \ud800x"), "gnp.exe[31m x");
});

test("frames are the user's or a library's", () => {
  assert.ok(names.isOwnFrame("train.py(12): step"));
  assert.ok(names.isOwnFrame("/home/me/model/layers.py(3): forward"));
  for (const name of [
    "torch/nn/modules/module.py(1783): _call_impl",
    "threading.py(9): run",
    "<built-in method mm>",
    "nn.Module: Linear_0",
    "/x/site-packages/timm/a.py(1): f",
  ])
    assert.ok(!names.isOwnFrame(name), name);
});

test("addresses lead there and back, whatever they name", () => {
  for (const text of ["a/b&c=d#e %", "<script>", "ü", "%zz", ""]) {
    const { path, parameters } = parse(format(["code", text || "x"], { file: text }));
    assert.deepEqual(path, ["code", text || "x"]);
    assert.equal(parameters.get("file") ?? "", text);
  }
  assert.deepEqual(parse("#t=1-2&k=3").path, ["timeline"]);
  assert.deepEqual(parse("").path, [""]);
});
