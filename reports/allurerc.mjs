// Allure 3 (npm: allure). From the repository's root:
//   npx allure generate --config reports/allurerc.mjs --output reports/allure reports/allure-results
//   npx allure quality-gate --config reports/allurerc.mjs reports/allure-results
import { defineConfig } from "allure";

// Allure 3.18 calls Iterator.prototype.toArray, which Node.js has from 22 on; this lets the quality gate run on 20, too.
const iterator = Object.getPrototypeOf(Object.getPrototypeOf([][Symbol.iterator]()));
iterator.toArray ??= function () {
  return [...this];
};

// The results carry the label "trouble"; these are its values, worst first.
const trouble = (name, statuses, expand = false) => ({
  name,
  matchers: [{ statuses, labels: { trouble: name } }],
  groupBy: [{ label: "parentSuite" }, "severity"],
  groupByMessage: false,
  expand,
});

export default defineConfig({
  name: "May these GPU hosts take traffic?",
  output: "reports/allure",
  historyPath: process.env.GPUINFRA_ALLURE_HISTORY ?? "reports/allure-history.jsonl",
  appendHistory: true,
  categories: [
    trouble("Transfer corrupt", ["failed"], true),
    trouble("Hang", ["failed"], true),
    {
      // The first category that matches is shown: what is corrupt or hangs by turns stays corrupt or hanging.
      name: "Flaky: passes and fails by turns",
      matchers: [{ statuses: ["failed", "broken"], flaky: true }],
      groupBy: [{ label: "parentSuite" }, "severity"],
      groupByMessage: false,
      expand: true,
    },
    trouble("Wrong fact", ["failed"], true),
    trouble("Endpoint", ["failed"], true),
    trouble("Drift", ["failed"], true),
    trouble("Unknown: could not be observed", ["broken"], true),
  ],
  qualityGate: {
    // Unknown is no success: a broken check closes the gate as a failed one does.
    rules: [{ maxFailures: 0, minTestsCount: 1 }],
  },
  plugins: {
    awesome: {
      options: {
        reportName: "May these GPU hosts take traffic?",
        groupBy: ["parentSuite", "suite", "subSuite"],
        theme: "auto",
        singleFile: false,
      },
    },
  },
});
