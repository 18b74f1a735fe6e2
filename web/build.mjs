// Builds the page's script and style into the Python package. `--tests` builds the unit tests instead;
// `--check` writes nothing and fails where the package holds something else than the source builds to.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const PACKAGE = new URL("../src/kinetoscope/render/templates/", import.meta.url);
const MOST = 300_000; // bytes of the bundle
const shared = { bundle: true, charset: "utf8", legalComments: "none", logLevel: "warning" };

/** Of all sources: the bundle carries it, so that tests without Node can tell whether it is theirs. */
function digest() {
  const hash = createHash("sha256");
  const files = readdirSync("src", { recursive: true }).filter((name) => /\.(ts|css)$/.test(name));
  for (const name of files.map((name) => name.replaceAll("\\", "/")).sort())
    hash.update(`${name}\n`).update(readFileSync(`src/${name}`));
  return hash.digest("hex").slice(0, 16);
}

async function buildTests() {
  const tests = readdirSync("tests").filter((name) => name.endsWith(".test.ts"));
  await build({
    ...shared,
    entryPoints: tests.map((name) => `tests/${name}`),
    outdir: ".tests",
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
  });
}

async function buildPage(check) {
  const { outputFiles } = await build({
    ...shared,
    entryPoints: { page: "src/main.ts" },
    outdir: "out",
    write: false,
    minify: true,
    target: "es2022",
    format: "iife",
    banner: { js: `/* ${digest()} */`, css: `/* ${digest()} */` },
  });
  const size = outputFiles.reduce((sum, file) => sum + file.contents.length, 0);
  if (size > MOST) throw new Error(`the bundle has ${size} bytes, more than ${MOST}`);
  for (const file of outputFiles) {
    const target = new URL(file.path.split("/").pop(), PACKAGE);
    if (!check) writeFileSync(target, file.contents);
    else if (readFileSync(target, "utf8") !== file.text)
      throw new Error(`${target.pathname} is not what web/ builds to: npm run build`);
  }
  console.log(`bundle: ${size} bytes`);
}

process.chdir(new URL(".", import.meta.url).pathname);
await (process.argv.includes("--tests") ? buildTests() : buildPage(process.argv.includes("--check")));
