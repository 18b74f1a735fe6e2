// Where the reader is: `#kernels/12`, `#timeline&t=100-200&k=7`. A path, then parameters; the back button works.
import { printable } from "./names.ts";

export interface Route {
  path: string[];
  parameters: Map<string, string>;
}

export function parse(hash: string): Route {
  const parameters = new Map<string, string>();
  const parts = hash.replace(/^#/, "").split("&").filter(Boolean);
  const first = parts[0] !== undefined && !parts[0].includes("=") ? parts.shift()! : "";
  for (const part of parts) {
    const [key, ...value] = part.split("=");
    parameters.set(decode(key!), decode(value.join("=")));
  }
  const path = first
    ? first.split("/").map(decode)
    : [parameters.has("t") || parameters.has("k") ? "timeline" : "overview"];
  return { path, parameters };
}

export function format(
  path: (string | number)[],
  parameters: Record<string, string | number | null | undefined> = {},
): string {
  const pairs = Object.entries(parameters).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return (
    "#" + [path.map(encode).join("/"), ...pairs.map(([key, value]) => `${key}=${encode(value!)}`)].join("&")
  );
}

/** The address changes without a step for the back button: what is only a view of the same place. */
export function replace(hash: string): void {
  history.replaceState(null, "", hash);
}

const encode = (text: string | number): string => encodeURIComponent(printable(String(text)));

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}
