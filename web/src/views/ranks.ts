// Ranks compared: who is waited for and why, step by step, collective by collective.
import type { App } from "../app.ts";
import type { CollectiveRow, Ranks } from "../document.ts";
import { h, titled, type Child } from "../dom.ts";
import { shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { heat } from "../ranks/heat.ts";
import { meeting } from "../ranks/meeting.ts";
import { format, type Route } from "../route.ts";
import { figure, share, table } from "../table.ts";

export function ranks(app: App, { parameters }: Route): Child {
  const found = app.report.ranks;
  if (!found) return h("p", {}, "One rank was recorded.");
  const [verdict, ...lines] = app.sentences.ranks;
  return [
    !app.report.sources.length &&
      h(
        "ul",
        { class: "crumbs" },
        app.sentences.title.map((part) => h("li", {}, part)),
      ),
    h("h1", {}, verdict),
    lines.map((line) => h("p", { class: "lead" }, line)),
    found.paces.rows.length > 0 &&
      found.paces.steps.length > 0 &&
      titled("Steps over ranks", "", heat(app, found)),
    meetings(app, found, Number(parameters.get("meeting") ?? 0) || 0),
    late(app, found),
    pipeline(app, found),
    collectives(found.collectives, "Collectives", "collectives"),
    collectives(found.inspected, "Collectives, as NCCL's Inspector logged them", "inspected"),
    spread(app, found),
    alike(found),
    each(found),
    clocks(found),
    app.report.unread.map((problem) => h("p", { class: "soft" }, problem)),
  ];
}

/** One collective, of those that were waited in most. */
function meetings(app: App, { meetings }: Ranks, wanted: number): Child {
  const at = Math.min(wanted, meetings.length - 1);
  const one = meetings[at];
  return (
    one &&
    titled(
      "A collective over its ranks",
      [one.kind, one.bytes === null ? "" : numbers.size(one.bytes), one.step].filter(Boolean).join(" · "),
      meetings.length > 1 &&
        h(
          "nav",
          { class: "chips", "aria-label": "of each sort the one that was waited in most" },
          "the worst of each sort:",
          meetings.map((row, place) =>
            h(
              "a",
              { href: format(["ranks"], { meeting: place }), "aria-current": place === at && "true" },
              [
                row.kind,
                row.bytes === null ? "" : ` ${numbers.size(row.bytes)}`,
                `, ${shorten(row.group, 26)}`,
              ].join(""),
            ),
          ),
        ),
      meeting(app, one),
    )
  );
}

function late(app: App, { late }: Ranks): Child {
  return (
    late.length > 0 &&
    titled(
      "Why ranks were late",
      "what the others waited for it",
      table(
        late,
        [
          { label: "rank", value: (row) => row.rank, cell: (row) => row.rank ?? "cannot be told" },
          {
            label: "because",
            value: (row) => row.cause,
            cell: (row) => [
              app.sentences.lateness[row.cause ?? ""] ?? row.cause ?? "cannot be told",
              row.detail && h("small", { class: "mono" }, shorten(row.detail, 90)),
            ],
          },
          { label: "waited", value: (row) => row.waited_us, cell: (row) => numbers.time(row.waited_us) },
          { label: "collectives", value: (row) => row.meetings, cell: (row) => numbers.count(row.meetings) },
        ],
        { id: "lateness", label: "why ranks were late", most: 12 },
      ),
    )
  );
}

/** Of a pipeline, how many times as long one stage or one sort of operation alone makes it. */
function pipeline(app: App, { ideal }: Ranks): Child {
  const stages = Object.entries(ideal?.by_stage ?? {}).map(([ranks, took], place) => ({
    what: `stage ${place}`,
    about: `rank ${ranks}`,
    took,
  }));
  const operations = Object.entries(ideal?.by_operation ?? {})
    .map(([sort, took]) => ({ what: app.sentences.operations[sort] ?? sort, about: "", took }))
    .sort((a, b) => b.took - a.took);
  const most = Math.max(...[...stages, ...operations].map((row) => row.took - 1), 0.02);
  return (
    stages.length > 0 &&
    titled(
      "What makes the pipeline longer",
      "how many times as long it takes for this alone, where all else takes what it takes at the mean",
      table(
        [...stages, ...operations],
        [
          {
            label: "stage or operation",
            value: (row) => row.what,
            cell: (row) => [row.what, row.about && h("small", {}, shorten(row.about, 60))],
          },
          { label: "slowdown", value: (row) => row.took, cell: (row) => `${row.took.toFixed(3)} ×` },
          {
            label: "longer by",
            value: (row) => row.took,
            cell: (row) => share(Math.max(row.took - 1, 0), "var(--bad)", most),
          },
        ],
        { id: "pipeline", label: "what makes the pipeline longer", most: 24 },
      ),
    )
  );
}

function collectives(rows: CollectiveRow[], title: string, id: string): Child {
  const gbps = (value: number) => numbers.rate(value * 1e9, "B");
  return (
    rows.length > 0 &&
    titled(
      title,
      id === "inspected"
        ? "the time of the last arrival, at the median; no starts are logged, and so no skew"
        : "transfer and skew at the median; bandwidths as nccl-tests count them",
      table(
        rows,
        [
          { label: "kind", value: (row) => row.kind, cell: (row) => row.kind },
          { label: "group", value: (row) => row.group, cell: group },
          { label: "size", value: (row) => row.bytes, cell: size },
          { label: "times", value: (row) => row.meetings, cell: times },
          figure("transfer", (row) => row.transfer_us, numbers.time, "the last arrival's part"),
          { label: "waiting", value: (row) => row.waiting_us, cell: (row) => numbers.time(row.waiting_us) },
          figure(
            "skew",
            (row) => row.skew_median_us,
            numbers.time,
            "from the first rank's arrival to the last's",
          ),
          figure("most", (row) => row.skew_max_us, numbers.time, "the largest skew"),
          {
            label: "last",
            value: (row) => row.last_rank,
            cell: (row) =>
              row.last_rank === null
                ? "–"
                : [`rank ${row.last_rank}`, h("small", {}, `${row.last_times} of ${row.told}`)],
          },
          figure("bandwidth", (row) => row.algorithm_gbps, gbps, "bytes over the time of the transfer"),
          {
            label: "of the bus",
            title: "what each link carried, and how much of what it can that is",
            value: (row) => row.bus_gbps,
            cell: (row) => [
              row.bus_gbps === null ? "–" : gbps(row.bus_gbps),
              row.share_of_link !== null &&
                h("small", {}, `${numbers.percent(row.share_of_link)} of the link`),
            ],
          },
        ],
        { id, label: title.toLowerCase(), filter: (row) => `${row.kind} ${row.group}` },
      ),
    )
  );
}

/** Of uneven ones the most loaded rank's. */
const size = (row: CollectiveRow): Child => [
  row.bytes === null ? "–" : numbers.size(row.bytes),
  row.uneven !== null &&
    h("small", {}, `${row.uneven.toFixed(1)} × the mean, rank ${row.heaviest_rank ?? "?"}`),
];

const group = (row: CollectiveRow): Child => [
  shorten(row.group, 40),
  h(
    "small",
    {},
    `${row.group_size === null ? "" : `of ${row.group_size}`}${row.groups > 1 ? `, ${row.groups} ×` : ""}`,
  ),
];

const times = (row: CollectiveRow): Child => [
  numbers.count(row.meetings),
  row.incomplete > 0 && h("small", {}, `${numbers.count(row.incomplete)} lack ranks`),
];

/** Each figure's distribution: from the least to the most, nine tenths between, the median marked. */
function spread(app: App, { spread, count }: Ranks): Child {
  const most = Math.max(...spread.map((row) => row.most), 1e-9);
  const left = (value: number) => `${(100 * value) / most}%`;
  return (
    count > 2 &&
    titled(
      "Over ranks",
      "shares of each rank's window, and whose the extremes are",
      table(
        spread,
        [
          { label: "share", value: (row) => row.what, cell: (row) => row.what },
          { label: "least", value: (row) => row.least, cell: (row) => extreme(row.least, row.least_rank) },
          { label: "median", value: (row) => row.median, cell: (row) => numbers.percent(row.median) },
          { label: "most", value: (row) => row.most, cell: (row) => extreme(row.most, row.most_rank) },
          {
            label: "10 % to 90 %",
            value: (row) => row.p90 - row.p10,
            cell: (row) =>
              h(
                "span",
                {
                  class: "spread",
                  title: `${numbers.percent(row.p10)} to ${numbers.percent(row.p90)} of eight in ten ranks`,
                },
                h("i", {
                  style: {
                    left: left(row.least),
                    width: left(row.most - row.least),
                    background: "var(--soft)",
                  },
                }),
                h("i", {
                  class: "middle",
                  style: {
                    left: left(row.p10),
                    width: left(row.p90 - row.p10),
                    background: app.palette.use("compute"),
                  },
                }),
                h("b", { style: { left: left(row.median) } }),
              ),
          },
        ],
        { id: "spread", label: "figures over ranks" },
      ),
    )
  );
}

const extreme = (fraction: number, rank: number): Child => [
  numbers.percent(fraction),
  h("small", {}, `rank ${rank}`),
];

function alike({ alike, ranks }: Ranks): Child {
  return (
    alike.length > 1 &&
    !ranks.length &&
    titled(
      "Ranks alike",
      "that compute alike long; medians of their windows",
      table(
        alike,
        [
          {
            label: "ranks",
            value: (row) => row.ranks,
            cell: (row) => h("span", { title: row.ranks }, shorten(row.ranks, 90)),
          },
          { label: "how many", value: (row) => row.count, cell: (row) => numbers.count(row.count) },
          { label: "compute", value: (row) => row.compute, cell: (row) => numbers.percent(row.compute) },
          figure("exposed waiting", (row) => row.exposed_waiting, numbers.percent),
          figure("exposed transfer", (row) => row.exposed_transfer, numbers.percent),
          figure("idle", (row) => row.idle, numbers.percent),
          figure("waited for", (row) => row.blamed_us, numbers.time),
        ],
        { id: "alike", label: "ranks alike" },
      ),
    )
  );
}

/** All, where they are few or were asked for; else those that are waited for most. */
function each(found: Ranks): Child {
  const rows = found.ranks.length ? found.ranks : found.worst;
  return (
    rows.length > 0 &&
    titled(
      found.ranks.length ? "Ranks" : "Ranks most waited for",
      "of each rank's own window",
      table(
        rows,
        [
          {
            label: "rank",
            value: (row) => row.rank,
            cell: (row) => [row.rank, row.host && h("small", {}, row.host)],
          },
          {
            label: "busy",
            value: (row) => row.busy_us / (row.window_us || 1),
            cell: (row) => share(row.busy_us / (row.window_us || 1), "var(--accent)"),
          },
          figure("computes", (row) => row.compute_us, numbers.time),
          figure("waits", (row) => row.waiting_us, numbers.time),
          figure("exposed", (row) => row.exposed_waiting_us, numbers.time),
          figure("transfer exposed", (row) => row.exposed_transfer_us, numbers.time),
          figure("bubbles", (row) => row.bubble_us || null, numbers.time, "waits in sends and receives"),
          figure("waited for", (row) => row.blamed_us, numbers.time),
          {
            label: "because",
            value: (row) => row.cause,
            cell: (row) => [
              row.cause ?? "–",
              row.detail && h("small", { class: "mono" }, shorten(row.detail, 60)),
              row.damages.map((damage) => h("small", {}, damage)),
            ],
          },
        ],
        { id: "ranks", label: "ranks" },
      ),
    )
  );
}

function clocks({ clocks }: Ranks): Child {
  return (
    clocks.length > 1 &&
    titled(
      "Clocks",
      "as the ends of collectives tell; nothing finer than the residual can be concluded",
      table(
        clocks,
        [
          { label: "ranks", value: (row) => row.ranks, cell: (row) => shorten(row.ranks, 40) },
          { label: "host", value: (row) => row.host || null, cell: (row) => row.host },
          figure("ahead", (row) => row.ahead_us, numbers.time),
          figure(
            "drifts",
            (row) => row.drift_ppm,
            (ppm) => `${ppm.toFixed(1)} ppm`,
          ),
          figure("residual", (row) => row.residual_us, numbers.time),
        ],
        { id: "rank-clocks", label: "clocks", most: 20 },
      ),
    )
  );
}
