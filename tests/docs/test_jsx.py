"""The page of docs/howto/nextjs.md compiles, and asks for what the route handler answers."""

import subprocess
from pathlib import Path

from docs.pages import ROOT, read_page
from docs.shims import node

ASSETS = ROOT / "tests" / "browser" / "assets"


def test_the_page_of_nextjs(tmp_path: Path) -> None:
    """Next.js is not installed here, so what it is imported for is given."""
    page = read_page(ROOT / "docs" / "howto" / "nextjs.md")
    [source] = [block.code for block in page.blocks if block.language == "jsx"]
    # Next.js preloads any other one, and the browser does not use that for a module.
    assert '<Script type="module" strategy="lazyOnload"' in source
    (tmp_path / "page.jsx").write_text(source)
    (tmp_path / "look.mjs").write_text(LOOK.replace("ASSETS", ASSETS.as_uri()))
    done = subprocess.run(
        [node(), "look.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr


# Draws the page as React does, without a browser: state first, then what the form leads to.
LOOK = """
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { compile } from "ASSETS/jsx.js";

const code = compile(readFileSync("page.jsx", "utf8"))
  .replace('import Script from "next/script";', "const { Script } = globalThis.given;")
  .replace(/import \\{ useState \\} from "react";/, "const { useState } = globalThis.given;");
assert.ok(!code.includes("import "), code);
writeFileSync("page.mjs", code);

const state = [];
let at = 0;
globalThis.given = {
  Script: "script",
  useState(first) {
    const mine = at++;
    if (!(mine in state)) state[mine] = first;
    return [state[mine], (value) => { state[mine] = value; }];
  },
};
globalThis.React = {
  Fragment: "fragment",
  createElement: (type, props, ...children) => ({ type, props, children }),
};
const { default: Feedback } = await import(new URL("page.mjs", `file://${process.cwd()}/`));
const draw = () => { at = 0; return Feedback(); };
const all = (drawn) => [drawn, ...(drawn?.children ?? []).flat().flatMap(all)];
const find = (drawn, type) => all(drawn).filter((one) => one?.type === type);

const sent = [];
globalThis.fetch = async (url, options) => {
  sent.push([url, JSON.parse(options.body).answer]);
  return answers.shift();
};
const answers = [
  Response.json({ src: "http://q/v1/jobs/1", token: "pt_1" }, { status: 202 }),
  Response.json({ code: "insufficient_credits", detail: "too few" }, { status: 402 }),
];
const form = new FormData();
form.set("answer", "42");
assert.equal(find(draw(), "penstock-job").length, 0);
await find(draw(), "form")[0].props.action(form);
const [shown] = find(draw(), "penstock-job");
assert.deepEqual([shown.props.src, shown.props.token], ["http://q/v1/jobs/1", "pt_1"]);
await find(draw(), "form")[0].props.action(form);
assert.equal(find(draw(), "p")[0].children[0], "too few");
assert.deepEqual(sent, [["/api/feedback", "42"], ["/api/feedback", "42"]]);
console.log("seen");
"""
