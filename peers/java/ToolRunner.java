import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools, many in one process, because a process takes two seconds to start.
 *
 * <p>Each line of standard input has what is typed into a tool in Base64, the class of the tool and its words, with
 * tabs in between; each is answered by one line: the exit code, and what was printed in Base64. A tool that does not
 * end in time has the exit code 124; its thread is left behind.
 */
public class ToolRunner {
    static final long LONG_SECONDS = 60;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Scala remembers the stream that it finds first, so it is always the same one.
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true));
        System.setErr(System.out);
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            int code = runInTime(words[1], Arrays.copyOfRange(words, 2, words.length));
            answers.println(code + " " + Base64.getEncoder().encodeToString(printed.toByteArray()));
            printed.reset();
        }
    }

    static int runInTime(String tool, String[] words) throws Exception {
        int[] code = {124};
        Thread thread = new Thread(() -> {
            try {
                code[0] = run(tool, words);
            } catch (Exception error) {
                error.printStackTrace(System.out);
                code[0] = 125;
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(TimeUnit.SECONDS.toMillis(LONG_SECONDS));
        return code[0];
    }

    static int run(String tool, String[] words) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) words);
            return 0;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Ended ended) {
                return ended.code;
            }
            throw error;
        }
    }

    /** A tool has ended the process, it thinks. */
    static class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            this.code = code;
        }
    }
}
