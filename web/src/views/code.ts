// The program's lines with what they cost, and what was generated of them.
import type { App } from "../app.ts";
import { numbered } from "../code.ts";
import { lineDoor } from "../doors.ts";
import { copyButton, h, type Child } from "../dom.ts";
import { works } from "../launches.ts";
import { isOwnFrame, place, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { format, type Route } from "../route.ts";
import { share, table, type ColumnOf } from "../table.ts";
import { keys } from "../timeline/chain.ts";

export interface Line {
  file: string;
  line: number;
  code: string;
  time: number;
  launches: number;
  idle: number;
  kernels: Map<string, number>;
  /** Its time is the compile log's, joined to the recording; else it is summed from the launches around it. */
  joined: boolean;
}

export function codePage(app: App, { parameters }: Route): Child {
  const file = parameters.get("file"),
    line = Number(parameters.get("line") ?? NaN);
  const graph = parameters.get("graph");
  if (graph !== undefined) return generatedModule(app, Number(graph), parameters.get("kernel"));
  const lines = programLines(app);
  const files = [...new Set(lines.map((one) => one.file))];
  return [
    h("h1", {}, file ? place(file, null) : "Code"),
    file
      ? h(
          "p",
          { class: "soft" },
          h("a", { href: "#code" }, "all files"),
          " / ",
          h("span", { class: "mono" }, file),
        )
      : h(
          "p",
          { class: "lead" },
          lines.length
            ? "The kernels that compute each line, or that it launches, with their device time; a fused kernel counts for each of its lines."
            : "The recording does not say which lines launch what: it needs Python stacks, or a compile log.",
        ),
    file
      ? inFile(
          app,
          lines.filter((one) => same(one.file, file)),
          line,
        )
      : files.length > 0 && allLines(app, lines),
    !file && modules(app),
    !file && frameTexts(app),
  ];
}

const same = (a: string, b: string): boolean => a === b || a.endsWith(`/${b}`) || b.endsWith(`/${a}`);

/** Lines of compiled graphs by provenance, and those whose Python frames stand around launches. */
export function programLines(app: App): Line[] {
  const lines = new Map<string, Line>();
  const of = (file: string, line: number, code: string): Line => {
    const key = `${file}:${line}`;
    let found = lines.get(key);
    if (!found)
      lines.set(
        key,
        (found = { file, line, code, time: 0, launches: 0, idle: 0, kernels: new Map(), joined: false }),
      );
    found.code ||= code;
    return found;
  };
  for (const row of app.report.compilation?.source_lines ?? [])
    Object.assign(of(row.file, row.line, row.code), { time: row.device_time_us, joined: true });
  const { store } = app;
  const idle = store?.idleBefore();
  for (const kernel of app.report.compilation?.kernels ?? []) {
    const idleTime = works(app, kernel.symbol || kernel.name).reduce(
      (sum, work) => sum + idle![work]! / 1000,
      0,
    );
    for (const place of new Set(kernel.source.map((row) => `${row.file}:${row.line}`))) {
      const row = kernel.source.find((one) => `${one.file}:${one.line}` === place)!;
      const found = of(row.file, row.line, row.code);
      found.kernels.set(kernel.symbol || kernel.name, kernel.device_time_us ?? 0);
      found.launches += kernel.launches ?? 0;
      found.idle += idleTime;
    }
  }
  for (const row of app.report.compilation?.graph_breaks ?? [])
    if (row.file !== null && row.line !== null) of(row.file, row.line, row.code ?? "");
  if (store)
    keys(store, "line").forEach((key, work) => {
      const [, file, line] = /^(.*?)\((\d+)\): /.exec(key) ?? [];
      if (!file || !isOwnFrame(key)) return;
      const row = store.work[work]!,
        time = store.duration[row]! / 1000,
        found = of(file, Number(line), "");
      found.code ||= key.slice(key.indexOf("): ") + 3);
      const { name } = store.nameOf(row);
      if (found.joined) return;
      found.launches++;
      found.idle += idle![work]! / 1000;
      found.time += time;
      found.kernels.set(name, (found.kernels.get(name) ?? 0) + time);
    });
  return [...lines.values()].sort((a, b) => b.time - a.time);
}

function allLines(app: App, lines: Line[]): Child {
  return h("section", {}, h("header", {}, h("h2", {}, "Lines of the program")), lineTable(app, lines));
}

function lineTable(app: App, lines: Line[]): HTMLElement {
  const most = lines[0]?.time ?? 1;
  const whole = app.report.kernels.reduce((sum, row) => sum + row.device_time_us, 0) || 1;
  const ran: ColumnOf<Line>[] = [
    { label: "device time", value: (row) => row.time, cell: (row) => numbers.time(row.time) },
    {
      label: "share",
      value: (row) => row.time,
      cell: (row) => share(row.time / whole, "var(--accent)", most / whole),
    },
    {
      label: "launches",
      value: (row) => row.launches,
      cell: (row) => (row.launches ? numbers.count(row.launches) : "–"),
    },
    {
      label: "idle before",
      title: "idle time that ended with one of its launches",
      value: (row) => row.idle,
      cell: (row) => (row.idle ? numbers.time(row.idle) : "–"),
    },
  ];
  return table(
    lines,
    [
      {
        label: "line",
        value: (row) => row.file + String(row.line).padStart(7),
        cell: (row) => lineDoor(app, row.file, row.line),
      },
      {
        label: "code",
        value: (row) => row.code,
        cell: (row) => h("code", {}, shorten(row.code.trim(), 120)),
      },
      ...(most > 0 ? ran : []), // a compile log alone knows no times
      { label: "kernels", value: (row) => row.kernels.size, cell: (row) => numbers.count(row.kernels.size) },
    ],
    { id: "lines", label: "lines of the program", filter: (row) => `${row.file}:${row.line} ${row.code}` },
  );
}

/** The known lines of one file in their order, each with its kernels; the one that was asked for is open. */
function inFile(app: App, lines: Line[], wanted: number): Child {
  if (!lines.length) return h("p", {}, "Nothing more is known of this file.");
  const most = Math.max(...lines.map((row) => row.time), 1e-9);
  return h(
    "section",
    {},
    h(
      "div",
      { class: "program" },
      lines
        .toSorted((a, b) => a.line - b.line)
        .map((row) =>
          h(
            "details",
            { open: row.line === wanted, class: row.line === wanted ? "wanted" : null },
            h(
              "summary",
              {},
              h("span", { class: "number soft" }, row.line),
              h("span", { class: "number" }, row.time ? numbers.time(row.time) : ""),
              h("span", { class: "meter" }, h("i", { style: { width: `${(100 * row.time) / most}%` } })),
              h("code", {}, row.code),
            ),
            notes(app, row),
            h(
              "ul",
              {},
              [...row.kernels]
                .sort((a, b) => b[1] - a[1])
                .slice(0, 30)
                .map(([name, time]) =>
                  h(
                    "li",
                    {},
                    h(
                      "a",
                      {
                        class: "door mono",
                        href: app.kernelOf(name) ? app.kernelHref(name) : moduleHref(app, name),
                      },
                      shorten(name, 90),
                    ),
                    time > 0 && ` ${numbers.time(time)}`,
                  ),
                ),
            ),
          ),
        ),
    ),
  );
}

function moduleHref(app: App, name: string): string {
  const kernel = app.compiledOf(name)[0];
  return kernel ? format(["code"], { graph: kernel.graph, kernel: kernel.name }) : app.kernelHref(name);
}

/** What the compiler said at that line. */
function notes(app: App, row: Line): Child {
  const { compilation } = app.report;
  const breaks =
    compilation?.graph_breaks.filter(
      (one) => one.file && one.line === row.line && same(one.file, row.file),
    ) ?? [];
  const guards =
    compilation?.recompilations.filter(
      (one) => one.file && one.line === row.line && same(one.file, row.file),
    ) ?? [];
  return [
    breaks.map((one) => h("p", { class: "note" }, `graph break: ${shorten(one.reason, 300)}`)),
    guards.map((one) =>
      h(
        "p",
        { class: "note" },
        `recompiled (${one.compile_id}): ${shorten(one.reasons[0]?.guard ?? "", 300)}`,
      ),
    ),
  ];
}

function modules(app: App): Child {
  const found = app.report.page?.modules ?? [],
    graphs = app.report.compilation?.graphs ?? [];
  return (
    found.length > 0 &&
    h(
      "section",
      {},
      h("header", {}, h("h2", {}, "Generated modules"), h("p", {}, "what Inductor wrote of each graph")),
      table(
        found,
        [
          {
            label: "graph",
            value: (row) => row.graph,
            cell: (row) =>
              h("a", { class: "door", href: format(["code"], { graph: row.graph }) }, label(app, row.graph)),
          },
          {
            label: "kernels",
            value: (row) => row.kernels.length,
            cell: (row) => numbers.count(row.kernels.length),
          },
          {
            label: "lines",
            value: (row) => row.code.split("\n").length,
            cell: (row) => numbers.count(row.code.split("\n").length),
          },
          {
            label: "device time",
            value: (row) => graphs[row.graph]?.device_time_us ?? null,
            cell: (row) => {
              const time = graphs[row.graph]?.device_time_us;
              return time ? numbers.time(time) : "–";
            },
          },
        ],
        { label: "generated modules", id: "modules" },
      ),
    )
  );
}

function label(app: App, graph: number): string {
  const row = app.report.compilation?.graphs.find((one) => one.index === graph);
  return row ? `${row.compile_id} ${row.direction}` : `graph ${graph}`;
}

function generatedModule(app: App, graph: number, kernel: string | undefined): Child {
  const module = app.report.page?.modules.find((one) => one.graph === graph);
  if (!module) return h("h1", {}, "The log has no such module");
  const lit = module.kernels.find((one) => one.name === kernel);
  const rows = app.report.compilation?.kernels.filter((one) => one.graph === graph) ?? [];
  const view = numbered(module.code, lit && [lit.first_line, lit.last_line]);
  if (lit)
    requestAnimationFrame(() => {
      document.querySelector(".lines .wanted")?.scrollIntoView({ block: "nearest" });
      view.querySelector("#lit")?.scrollIntoView({ block: "start" });
    });
  return [
    h("p", { class: "soft" }, h("a", { href: "#code" }, "code"), " / generated"),
    h("h1", {}, `Generated for ${label(app, graph)}`),
    h(
      "div",
      { class: "beside wide" },
      h(
        "section",
        {},
        h("header", {}, h("h2", {}, "Kernels and their lines")),
        h(
          "ul",
          { class: "lines" },
          rows.map((row) =>
            h(
              "li",
              { class: row.name === kernel ? "wanted" : null },
              h(
                "a",
                { class: "door mono", href: format(["code"], { graph, kernel: row.name }) },
                shorten(row.name, 60),
              ),
              row.device_time_us !== null && h("small", {}, ` ${numbers.time(row.device_time_us)}`),
              row.source
                .slice(0, 6)
                .map((line) =>
                  h(
                    "div",
                    {},
                    h(
                      "a",
                      { class: "door mono", href: app.lineHref(line.file, line.line) },
                      place(line.file, line.line),
                    ),
                    " ",
                    h("code", {}, shorten(line.code.trim(), 90)),
                  ),
                ),
            ),
          ),
        ),
      ),
      h("section", {}, h("header", {}, h("h2", {}, "Module"), copyButton(module.code, "the module")), view),
    ),
    module.post_grad &&
      h(
        "section",
        {},
        h(
          "details",
          {},
          h("summary", {}, "The graph it was written of, after all passes"),
          numbered(module.post_grad),
        ),
      ),
    frameTexts(app, app.report.compilation?.graphs.find((one) => one.index === graph)?.frame),
  ];
}

export function frameTexts(app: App, frame?: number): Child {
  const texts = (app.report.page?.frame_texts ?? []).filter(
    (one) => frame === undefined || one.frame === frame,
  );
  const frames = app.report.compilation?.frames ?? [];
  return (
    texts.length > 0 &&
    h(
      "section",
      {},
      h(
        "header",
        {},
        h("h2", {}, "FX graphs"),
        h("p", {}, "as captured, and after each pass that the log has"),
      ),
      texts.map((one) => {
        const details = h(
          "details",
          {},
          h(
            "summary",
            {},
            `${frames[one.frame]?.compile_id ?? one.frame} ${frames[one.frame]?.function ?? ""}: ${one.name}`,
          ),
        );
        details.addEventListener(
          "toggle",
          () => details.childElementCount === 1 && details.append(numbered(one.text)),
        );
        return details;
      }),
    )
  );
}
