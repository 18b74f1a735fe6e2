// The program's lines with what they cost: device time, launches and idle time, file by file.
import type { App } from "../app.ts";
import { highlightedLines, numbered } from "../code.ts";
import { format, lineDoor } from "../links.ts";
import { type Child, h, list, monoLink, para, soft, titled } from "../dom.ts";
import { isOwnFrame, place, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { figure, shares, table, type ColumnOf } from "../table.ts";
import { keys } from "../timeline/chain.ts";

const KERNELS = 30;

export interface Line {
  file: string;
  line: number;
  code: string;
  time: number;
  launches: number;
  idle: number;
  kernels: Map<string, number>;
  /** Of kernels of libraries, by the op that calls them. */
  library: Record<string, number>;
  /** Its time is the compile log's, joined to the recording; else it is summed from the launches around it. */
  joined: boolean;
}

/** Frames leave out the head of a path. */
const same = (a: string, b: string): boolean => a === b || a.endsWith(`/${b}`) || b.endsWith(`/${a}`);

/** The lines that something is known of, and the files. */
export function program(app: App): Child {
  const lines = programLines(app);
  return [
    para(
      "lead",
      lines.some((row) => row.time > 0)
        ? "The kernels that compute each line, or that it launches, with their device time; a fused kernel counts for each of its lines."
        : lines.length
          ? "The kernels that compute each line; a fused kernel stands at each of its lines. No device time is known of them."
          : app.report.devices.length
            ? "The recording does not say which lines launch what: it needs Python stacks (`kinetoscope run --stacks`), or a compile log."
            : "Nothing was recorded of a device: no line has device time.",
    ),
    lines.length > 0 && titled("Lines of the program", "", lineTable(app, lines), remainder(app, lines)),
    files(app, lines),
  ];
}

/** What no line has; a fused kernel counts for several, and then the lines add up to more than there is. */
function remainder(app: App, lines: Line[]): Child {
  const whole = app.report.kernels.reduce((sum, row) => sum + row.device_time_us, 0);
  const rest = whole - lines.reduce((sum, row) => sum + row.time, 0);
  if (lines.some((row) => row.joined) || rest < whole / 1000) return null;
  return soft(`${numbers.time(rest)} of device time, ${numbers.percent(rest / whole)}, is of no known line.`);
}

function files(app: App, lines: Line[]): Child {
  const kept = app.report.page?.program ?? [];
  const door = (path: string): Child => monoLink(app.lineHref(path, null), path, path);
  const launches = (path: string) =>
    lines.filter((row) => row.file === path).reduce((sum, row) => sum + row.launches, 0);
  return (
    kept.length > 0 &&
    titled(
      "Files",
      "the program's own modules and what was compiled, as the recording keeps them",
      table(
        kept,
        [
          { label: "file", value: ({ path }) => path, cell: ({ path }) => door(path) },
          figure("lines", (row) => row.text.split("\n").length, numbers.count),
          figure("launches", (row) => launches(row.path) || null, numbers.count),
        ],
        { id: "files", label: "files of the program", filter: (row) => row.path },
      ),
    )
  );
}

/** Lines of compiled graphs by provenance, and those whose Python frames stand around launches. */
export function programLines(app: App): Line[] {
  const lines = new Map<string, Line>();
  const paths = new Map<string, string>();
  const pathOf = (file: string): string => {
    if (!paths.has(file))
      paths.set(file, app.report.page?.program.find((one) => same(one.path, file))?.path ?? file);
    return paths.get(file)!;
  };
  const of = (name: string, line: number, code: string): Line => {
    const file = pathOf(name),
      key = `${file}:${line}`;
    const nothing = { time: 0, launches: 0, idle: 0, library: {}, joined: false };
    const found = lines.get(key) ?? { file, line, code, kernels: new Map<string, number>(), ...nothing };
    found.code ||= code;
    lines.set(key, found);
    return found;
  };
  for (const row of app.report.compilation?.source_lines ?? [])
    Object.assign(of(row.file, row.line, row.code), {
      time: row.device_time_us,
      library: row.library_us,
      joined: true,
    });
  const { store } = app;
  const idle = store?.idleBefore();
  for (const kernel of app.report.compilation?.kernels ?? []) {
    const idleTime = app
      .works(kernel.symbol || kernel.name)
      .reduce((sum, work) => sum + idle![work]! / 1000, 0);
    const places = new Map(kernel.source.toReversed().map((row) => [`${row.file}:${row.line}`, row]));
    for (const row of [...places.values()].reverse()) {
      const found = of(row.file, row.line, row.code);
      const name = kernel.symbol || kernel.name; // graphs may have kernels of one name
      found.kernels.set(name, (found.kernels.get(name) ?? 0) + (kernel.device_time_us ?? 0));
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

/** A dash for none. */
const some =
  (write: (value: number) => string) =>
  (value: number): string =>
    value ? write(value) : "–";

function lineTable(app: App, lines: Line[]): HTMLElement {
  const most = lines[0]?.time ?? 1;
  const whole = app.report.kernels.reduce((sum, row) => sum + row.device_time_us, 0) || 1;
  const ran: ColumnOf<Line>[] = [
    figure("device time", (row) => row.time, some(numbers.time)),
    shares("share", (row) => [row.time / whole, "var(--accent)"], most / whole),
    figure("launches", (row) => row.launches, some(numbers.count)),
    figure(
      "idle before",
      (row) => row.idle,
      some(numbers.time),
      "idle time that ended with one of its launches",
    ),
  ];
  const door = (row: Line): Child => lineDoor(app, row.file, row.line);
  return table(
    lines,
    [
      { label: "line", value: (row) => row.file + String(row.line).padStart(7), cell: door },
      { label: "code", value: (row) => row.code, cell: (row) => h("code", shorten(row.code.trim(), 120)) },
      ...(most > 0 ? ran : []), // a compile log alone knows no times
      figure("kernels", (row) => row.kernels.size, numbers.count),
    ],
    { id: "lines", label: "lines of the program", filter: (row) => `${row.file}:${row.line} ${row.code}` },
  );
}

/** One file: all of it where the recording keeps it, else the lines that something is known of. */
export function filePage(app: App, wanted: string, line: number): Child {
  const lines = new Map(
    programLines(app)
      .filter((row) => same(row.file, wanted))
      .map((row) => [row.line, row]),
  );
  const kept = app.report.page?.program.find((file) => same(file.path, wanted));
  return [
    soft(h("a", { href: "#code" }, "code"), " / ", h("span.mono", kept?.path ?? wanted)),
    h("h1", place(wanted, null)),
    !kept &&
      para(
        "note",
        "The recording does not keep this file: only lines that something is known of are shown. `kinetoscope run` keeps the program's own.",
      ),
    kept &&
      isAnother(kept.text, [...lines.values()]) &&
      para("note", "The file was changed after it had been compiled: figures may stand at other lines."),
    lines.size > 0 && para("lead", meaning([...lines.values()])),
    lines.size > 0
      ? h("section", heads(), listing(app, lines, kept?.text, line))
      : kept
        ? h("section", numbered(kept.text, Number.isNaN(line) ? undefined : [line, line]))
        : h("p", "Nothing more is known of this file."),
  ];
}

/** Whether lines that the compile log has are not those of the text. */
function isAnother(text: string, lines: Line[]): boolean {
  const kept = text.split("\n");
  return lines.some((row) => row.joined && !kept[row.line - 1]?.includes(row.code.trim().split("\n")[0]!));
}

function meaning(lines: Line[]): string {
  const joined = "Kernels stand at each line that they compute a part of.";
  const framed =
    "Where Python frames alone tell whose a launch is, it stands at the first line of the innermost function of yours: frames do not say which line ran.";
  return [lines.some((row) => row.joined) && joined, lines.some((row) => !row.joined) && framed]
    .filter(Boolean)
    .join(" ");
}

const heads = (): HTMLElement =>
  h(
    "div.program-line.heads",
    ["", "device time", "", "launches", "idle before", ""].map((label) => h("span.number", label)),
  );

function listing(app: App, lines: Map<number, Line>, text: string | undefined, wanted: number): Child {
  const most = Math.max(...[...lines.values()].map((row) => row.time), 1e-9);
  const whole = text === undefined ? null : highlightedLines(text.replace(/\n$/, ""));
  const shown = whole ? whole.map((_, at) => at + 1) : [...lines.keys()].sort((a, b) => a - b);
  const element = h(
    "div.program",
    shown.map((number) => {
      const row = lines.get(number);
      const code = h("code", whole ? whole[number - 1]! : (row?.code ?? ""));
      const figures = [
        h("span.number.soft", number),
        h("span.number", row?.time ? numbers.time(row.time) : ""),
        h("span.meter", row && h("i", { style: { width: `${(100 * row.time) / most}%` } })),
        h("span.number.soft", row?.launches ? numbers.count(row.launches) : ""),
        h("span.number.soft", row?.idle ? numbers.time(row.idle) : ""),
        code,
      ];
      const lit = number === wanted ? "wanted" : null;
      if (!row) return h("div", { class: `program-line ${lit ?? ""}` }, figures);
      return h(
        "details",
        { open: number === wanted, class: lit },
        h("summary.program-line", figures),
        notes(app, row),
        list(null, parts(app, row)),
      );
    }),
  );
  requestAnimationFrame(() => element.querySelector(".wanted")?.scrollIntoView({ block: "center" }));
  return element;
}

/** The kernels of a line, and those of libraries by op: they add up to its device time. */
function parts(app: App, row: Line): Child[] {
  const opDoor = (op: string): Child => monoLink(app.store && format(["kernels"], { by: "op", in: op }), op);
  const found: [Child, number][] = [
    ...[...row.kernels].map(([name, time]): [Child, number] => [kernelDoor(app, name), time]),
    ...Object.entries(row.library).map(([op, time]): [Child, number] => [
      ["library kernels of ", opDoor(op)],
      time,
    ]),
  ];
  found.sort((a, b) => b[1] - a[1]);
  const where = found.length > KERNELS ? "smaller parts" : "work without a name";
  const rest = row.time - found.slice(0, KERNELS).reduce((sum, [, time]) => sum + time, 0);
  return [
    ...found.slice(0, KERNELS).map(([name, time]) => [name, time > 0 && ` ${numbers.time(time)}`]),
    rest > row.time / 1000 && soft(`and ${numbers.time(rest)} in ${where}`),
  ];
}

function kernelDoor(app: App, name: string): HTMLElement {
  const kernel = app.kernelOf(name) ? undefined : app.compiledOf(name)[0];
  const href = kernel ? format(["code"], { graph: kernel.graph, kernel: kernel.name }) : app.kernelHref(name);
  return monoLink(href, shorten(name, 90), name);
}

/** What the compiler said at that line. */
function notes(app: App, row: Line): Child {
  const { graph_breaks = [], recompilations = [] } = app.report.compilation ?? {};
  const isHere = ({ file, line }: { file: string | null; line: number | null }) =>
    file && line === row.line && same(file, row.file);
  const breaks = graph_breaks.filter(isHere).map(({ reason }) => `graph break: ${shorten(reason, 300)}`);
  const again = recompilations
    .filter(isHere)
    .map(
      ({ compile_id, reasons: [first] }) => `recompiled (${compile_id}): ${shorten(first?.guard ?? "", 300)}`,
    );
  return [...breaks, ...again].map((text) => para("note", text));
}
