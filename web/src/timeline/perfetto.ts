// Handing the trace over to Perfetto: only on a click, and only where `kinetoscope view` serves this page.
// See https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui: a ping until the window answers.
const PERFETTO = "https://ui.perfetto.dev";
const PATIENCE = 60_000; // milliseconds

export const isServed = (): boolean => location.protocol === "http:";

/** Perfetto at an interval (nanoseconds on the trace's clock), with some tracks pinned to the top. */
export function perfettoUrl(from: number, to: number, pinned: string): string {
  const commands = JSON.stringify([{ id: "dev.perfetto.PinTracksByRegex", args: [pinned] }]);
  const range = `visStart=${BigInt(Math.round(from))}&visEnd=${BigInt(Math.round(to))}`;
  return `${PERFETTO}/#!/?${range}&startupCommands=${encodeURIComponent(commands)}`;
}

export async function openInPerfetto(title: string, from: number, to: number, pinned: string): Promise<void> {
  const opened = window.open(perfettoUrl(from, to, pinned)); // before any wait: browsers stop later ones
  if (!opened) throw new Error("the browser did not open a window");
  const [buffer] = await Promise.all([
    fetch("trace.pftrace").then((response) => response.arrayBuffer()),
    answered(opened),
  ]);
  opened.postMessage({ perfetto: { buffer, title, keepApiOpen: true } }, PERFETTO, [buffer]);
}

function answered(opened: Window): Promise<void> {
  return new Promise((done, failed) => {
    const since = Date.now();
    const ping = setInterval(() => {
      opened.postMessage("PING", PERFETTO);
      if (Date.now() - since > PATIENCE) stop(() => failed(new Error("Perfetto did not answer")));
    }, 100);
    const hear = ({ source, origin, data }: MessageEvent): void => {
      if (source === opened && origin === PERFETTO && data === "PONG") stop(done);
    };
    const stop = (then: () => void): void => {
      clearInterval(ping);
      removeEventListener("message", hear);
      then();
    };
    addEventListener("message", hear);
  });
}
