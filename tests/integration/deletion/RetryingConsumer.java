import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Receives messages as PIP-186 says the deletion service does, and reconsumes each later. Run as a source file;
 * arguments: service URL, topic, retry topic, dead-letter topic, subscription, count, delay in ms, maximum of retries.
 * Prints "received: " and, in Base64 each, payload, key, ordering key, event time and every property of each message.
 */
public class RetryingConsumer {
    public static void main(String[] args) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().retryLetterTopic(args[2]).deadLetterTopic(args[3])
                .maxRedeliverCount(Integer.parseInt(args[7])).build();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(args[1]).subscriptionName(args[4])
                        .subscriptionType(SubscriptionType.Shared).enableRetry(true).deadLetterPolicy(policy)
                        .isAckReceiptEnabled(true) // else the last acknowledgement may be lost as it closes
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int number = 0; number < Integer.parseInt(args[5]); number++) {
                Message<byte[]> message = consumer.receive(300, TimeUnit.SECONDS);
                StringBuilder line = new StringBuilder("received:");
                append(line, message.getData());
                append(line, text(message.getKey()));
                append(line, message.getOrderingKey() == null ? new byte[0] : message.getOrderingKey());
                append(line, text(String.valueOf(message.getEventTime())));
                for (Map.Entry<String, String> property : new TreeMap<>(message.getProperties()).entrySet()) {
                    append(line, text(property.getKey() + "=" + property.getValue()));
                }
                System.out.println(line);
                consumer.reconsumeLater(message, Long.parseLong(args[6]), TimeUnit.MILLISECONDS);
            }
        }
    }

    private static byte[] text(String value) {
        return (value == null ? "" : value).getBytes(StandardCharsets.UTF_8);
    }

    private static void append(StringBuilder line, byte[] value) {
        line.append(' ').append(Base64.getEncoder().encodeToString(value)).append('.');
    }
}
