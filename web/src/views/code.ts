// What was generated of the program; the program itself is in program.ts.
import type { App } from "../app.ts";
import type { CompiledKernel } from "../document.ts";
import { sections } from "../blocks.ts";
import { numbered } from "../code.ts";
import { type Child, copyButton, folded, given, h, monoLink, soft, titled } from "../dom.ts";
import { place, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { format, type Route } from "../links.ts";
import { filePage, program } from "./program.ts";

export function codePage(app: App, { parameters }: Route): Child {
  const file = parameters.get("file"),
    line = Number(parameters.get("line") ?? NaN);
  const graph = parameters.get("graph");
  if (graph !== undefined) return generatedModule(app, Number(graph), parameters.get("kernel"));
  if (file !== undefined) return filePage(app, file, line);
  return [h("h1", "Code"), program(app), sections(app, app.sentences.blocks.modules ?? []), frameTexts(app)];
}

function label(app: App, graph: number): string {
  const row = app.report.compilation?.graphs.find((one) => one.index === graph);
  return row ? `${row.compile_id} ${row.direction}` : `graph ${graph}`;
}

function generatedModule(app: App, graph: number, kernel: string | undefined): Child {
  const module = app.report.page?.modules.find((one) => one.graph === graph);
  if (!module) return h("h1", "The log has no such module");
  const lit = module.kernels.find((one) => one.name === kernel);
  const rows = app.report.compilation?.kernels.filter((one) => one.graph === graph) ?? [];
  const view = numbered(module.code, lit && [lit.first_line, lit.last_line]);
  if (lit)
    requestAnimationFrame(() => {
      document.querySelector(".lines .wanted")?.scrollIntoView({ block: "nearest" });
      view.querySelector("#lit")?.scrollIntoView({ block: "start" });
    });
  const item = ({ name, device_time_us, source }: CompiledKernel): HTMLElement =>
    h(
      name === kernel ? "li.wanted" : "li",
      monoLink(format(["code"], { graph, kernel: name }), shorten(name, 60)),
      given(device_time_us, (us) => h("small", ` ${numbers.time(us)}`)),
      source.slice(0, 6).map(({ file, line, code }) => {
        const door = monoLink(app.lineHref(file, line), place(file, line));
        return h("div", door, " ", h("code", shorten(code.trim(), 90)));
      }),
    );
  return [
    soft(h("a", { href: "#code" }, "code"), " / generated"),
    h("h1", `Generated for ${label(app, graph)}`),
    h(
      "div.side-by-side.wide",
      titled("Kernels and their lines", "", h("ul.lines", rows.map(item))),
      h("section", h("header", h("h2", "Module"), copyButton(module.code, "the module")), view),
    ),
    module.post_grad &&
      h("section", folded("The graph it was written of, after all passes", numbered(module.post_grad))),
    frameTexts(app, app.report.compilation?.graphs.find((one) => one.index === graph)?.frame),
  ];
}

export function frameTexts(app: App, frame?: number): Child {
  const texts = (app.report.page?.frame_texts ?? []).filter(
    (one) => frame === undefined || one.frame === frame,
  );
  const frames = app.report.compilation?.frames ?? [];
  const drawn = texts.map(({ frame, name, text }) => {
    const details = folded(`${frames[frame]?.compile_id ?? frame} ${frames[frame]?.function ?? ""}: ${name}`);
    const isEmpty = (): boolean => details.childElementCount === 1;
    details.addEventListener("toggle", () => isEmpty() && details.append(numbered(text)));
    return details;
  });
  const about = "as captured, and after each pass that the log has";
  return drawn.length > 0 && titled("FX graphs", about, drawn);
}
