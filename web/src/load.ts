// The page's data: base64 of gzip of a JSON text and, behind it, columns of numbers as planes of bytes.
import type { PackedColumn, Report, Sentences } from "./document.ts";

export type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;
export interface Shown {
  report: Report;
  sentences: Sentences;
  columns: Map<string, Numbers>;
}

export async function load(base64: string): Promise<Shown> {
  const bytes = await unzipped(decoded(base64));
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const text = new TextDecoder().decode(bytes.subarray(4, 4 + length));
  const [report, sentences] = JSON.parse(text) as [Report, Sentences];
  const columns = new Map<string, Numbers>();
  let at = 4 + length;
  const { timeline, allocator } = report.page ?? {};
  for (const column of [timeline, ...(allocator ?? [])].flatMap((part) => part?.columns ?? [])) {
    columns.set(column.name, unpacked(column, bytes, at));
    at += column.length * column.planes;
  }
  return { report, sentences, columns };
}

function decoded(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

async function unzipped(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The numbers of a column whose planes lie at `at`: sums of `byte << 8 * plane`, exact below 2^53. */
export function unpacked(column: PackedColumn, bytes: Uint8Array, at: number): Numbers {
  const { length, planes, deltas } = column;
  const Kind =
    deltas || planes > 4 ? Float64Array : ([Uint8Array, Uint8Array, Uint16Array][planes] ?? Uint32Array);
  const values = new Kind(length);
  let weight = 1;
  for (let plane = 0; plane < planes; plane++, weight *= 256) {
    const from = at + plane * length;
    for (let row = 0; row < length; row++) values[row]! += bytes[from + row]! * weight;
  }
  if (deltas) {
    let sum = 0;
    for (let row = 0; row < length; row++) {
      const stored = values[row]!;
      sum += stored % 2 ? -(stored + 1) / 2 : stored / 2;
      values[row] = sum;
    }
  }
  return values;
}
