// Python with its words marked, each set as text. What stands in ''' is code too: so Inductor holds kernels.
import { h } from "./dom.ts";

const PIECES =
  /(#[^\n]*)|("""[\s\S]*?"""|'''|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|\b(def|return|if|else|elif|for|in|while|import|from|as|class|with|None|True|False|and|or|not|is|lambda|yield|assert|del|raise|try|except|pass|global)\b|\b(tl|triton|torch|extern_kernels|aten)\b|(\b\d[\w.]*\b)/g;
const KINDS = ["comment", "string", "keyword", "module", "literal"];

export function highlighted(text: string): (Node | string)[] {
  const pieces: (Node | string)[] = [];
  let at = 0;
  for (const match of text.matchAll(PIECES)) {
    if (match.index > at) pieces.push(text.slice(at, match.index));
    const kind = KINDS[match.slice(1).findIndex((group) => group !== undefined)]!;
    pieces.push(h("span", { class: `c-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  pieces.push(text.slice(at));
  return pieces;
}

/** The same, line by line. */
export function highlightedLines(text: string): (Node | string)[][] {
  const lines: (Node | string)[][] = [[]];
  for (const piece of highlighted(text))
    (typeof piece === "string" ? piece : (piece.textContent ?? "")).split("\n").forEach((part, at) => {
      if (at > 0) lines.push([]);
      const kind = piece instanceof Element ? piece.className : null;
      if (part) lines.at(-1)!.push(kind ? h("span", { class: kind }, part) : part);
    });
  return lines;
}

export function code(text: string): HTMLElement {
  return h("pre", { class: "code", tabindex: "0" }, highlighted(text));
}

/** With line numbers, and some lines highlighted. */
export function numbered(text: string, lit?: [number, number], from = 1): HTMLElement {
  const lines = text.split("\n");
  const gutter = lines.map((_, at) => from + at).join("\n");
  const band =
    lit &&
    h("div", {
      class: "lit",
      id: "lit",
      style: { top: `${(lit[0] - from) * 1.45}em`, height: `${(lit[1] - lit[0] + 1) * 1.45}em` },
    });
  return h(
    "div",
    { class: "numbered", tabindex: "0", role: "region", "aria-label": "source" },
    h("pre", { class: "gutter", "aria-hidden": "true" }, gutter),
    h("pre.code", band, highlighted(text)),
  );
}
