// Asks a Firstline tier what is in a file: node infer.mjs URL FILE [MODEL]
import { readFile } from "node:fs/promises";

import { said } from "./said.mjs";

const [url, file, model = "digits"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node infer.mjs URL FILE [MODEL], such as: node infer.mjs http://127.0.0.1:8070 digit.png");
  process.exit(1);
}

const token = process.env.FIRSTLINE_TOKEN;
const response = await fetch(new URL(`/firstline/v1/models/${encodeURIComponent(model)}/infer`, url), {
  method: "POST",
  headers: token ? { Authorization: `Bearer ${token}` } : {},
  body: await readFile(file),
});
const answer = await response.json();
if (!response.ok) throw new Error(`${answer.code}: ${answer.error}`);
console.log(`${said(answer)}, ${answer.tier}: ${answer.reason}, ${answer.status}`);
